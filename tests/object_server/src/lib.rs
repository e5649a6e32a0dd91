//! For tests and measurements: an object store with the interface of S3, with faults on demand.
//!
//! It knows what a reader of a dataset uses: listing (version 2), `GET` and `HEAD` with `Range` and `If-Match`, and
//! `PUT` and `DELETE` to change objects. It checks no signature, but it can demand certain temporary credentials, which
//! its metadata service gives. All objects are in memory, and one thread serves all connections. A plain
//! `GET http://host/bucket/key` works as on a web server, and `PROPFIND` lists a folder as WebDAV does.
//!
//! The requests under `/-/` control it, so that tests in other languages can: `PUT /-/faults?error_every=20`,
//! `PUT /-/load?bucket=b&prefix=p&folder=/photos`, `GET /-/counts`.
#![deny(unsafe_code)]

mod answer;
mod credentials;
mod faults;
mod listing;
mod object;
mod request;
mod serve;
mod store;

pub use credentials::Credentials;
pub use faults::Faults;
pub use serve::{LoadedFolder, ObjectServer};
pub use store::RequestCounts;
