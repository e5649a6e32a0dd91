//! Folders for the sockets and logs of a measurement.

use std::os::unix::fs::PermissionsExt;

use tempfile::TempDir;

/// Longest path of a folder that leaves room for the names of sockets in it.
const LONGEST_FOLDER: usize = 48;

/// Makes a folder for sockets and logs: among the temporary files, or in `/tmp` if that path is too long for sockets.
///
/// # Errors
/// If the folder cannot be made.
pub fn scratch_folder() -> std::io::Result<TempDir> {
    let mut builder = tempfile::Builder::new();
    // A coordinator accepts no folder that other users can enter.
    builder
        .prefix("coprep-")
        .permissions(std::fs::Permissions::from_mode(0o700));
    if std::env::temp_dir().as_os_str().len() > LONGEST_FOLDER {
        builder.tempdir_in("/tmp")
    } else {
        builder.tempdir()
    }
}
