//! Serves until its standard input ends. The first line of its output is its port.
//!
//! Usage: `coprep-object-server [PORT [BUCKET PREFIX FOLDER]...]`. Port 0 is a free one. It has all files below each folder.

use std::io::Read;
use std::path::Path;

use coprep_object_server::{LoadedFolder, ObjectServer};

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let port = arguments.first().and_then(|port| port.parse().ok());
    let folders: Vec<_> = arguments
        .get(1..)
        .unwrap_or_default()
        .chunks_exact(3)
        .map(loaded)
        .collect();
    let server = ObjectServer::start_at(port.unwrap_or(0), &folders)?;
    println!("{}", server.port());
    // It ends with the process that has started it, however that ends.
    std::io::stdin().read_to_end(&mut Vec::new()).map(drop)
}

fn loaded(words: &[String]) -> LoadedFolder<'_> {
    LoadedFolder {
        bucket: &words[0],
        prefix: &words[1],
        folder: Path::new(&words[2]),
    }
}
