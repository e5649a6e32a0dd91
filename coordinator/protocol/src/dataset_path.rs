//! One spelling for each path of a dataset, so that jobs which name one folder in different ways share it.
//!
//! A folder has many spellings: relative, with a slash at its end, through `..`, through a symbolic link. Streams and
//! caches are told apart by the text of the path, so every path is resolved where a person or a script names it. That
//! happens in the caller's process, because only there do relative paths and mounts have the caller's meaning.

use std::borrow::Cow;
use std::collections::HashMap;
use std::fmt::Write;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Most folders that [`files`] resolves. Each costs some system calls, which on a network file system are round trips.
const MOST_FOLDERS: usize = 4096;

/// Returns the absolute path of a folder, without links, `.`, `..` or a slash at its end.
///
/// If the folder does not exist, the existing part of its path is resolved. The code that reads the folder reports that
/// it is missing.
///
/// # Errors
/// When the path is empty, or relative while the working directory cannot be read.
pub fn folder(path: &Path) -> io::Result<PathBuf> {
    let path = std::path::absolute(path)?;
    for ancestor in path.ancestors() {
        if let Ok(mut resolved) = ancestor.canonicalize() {
            let missing = path.strip_prefix(ancestor).unwrap_or(Path::new(""));
            resolved.extend(missing.components());
            return Ok(resolved);
        }
    }
    Ok(path)
}

/// Returns the absolute paths of files, with their folders resolved as by [`folder`].
///
/// Each folder is resolved once. Files are not looked at, so a file that is a link keeps its name. If the files lie in
/// more than 4,096 folders, folders further up are resolved instead: those of the deepest level that has at most 4,096
/// of them.
///
/// # Errors
/// As [`folder`].
pub fn files(paths: &[PathBuf]) -> io::Result<Vec<PathBuf>> {
    if paths.iter().any(|path| path.as_os_str().is_empty()) {
        let text = "an empty path names no file: leave it out of the list";
        return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
    }
    let (level, folders) = folders_of(paths);
    let mut resolved = HashMap::with_capacity(folders.len());
    for named in folders {
        // The parent of a bare name is empty and stands for the working directory.
        let here = if named.as_os_str().is_empty() {
            Path::new(".")
        } else {
            named
        };
        resolved.insert(named, folder(here)?);
    }
    let in_resolved = |path: &PathBuf| {
        let named = ancestor(path, level);
        let rest = path.strip_prefix(named).unwrap_or(path);
        let mut path = resolved.get(named).cloned().unwrap_or_default();
        path.extend(rest.components());
        path
    };
    Ok(paths.iter().map(in_resolved).collect())
}

/// Returns a path as text, because messages carry text. A zero and two hexadecimal digits stand for each byte that is no
/// UTF-8: no path holds a zero.
#[must_use]
pub fn text_of(path: &Path) -> String {
    if let Some(text) = path.to_str().filter(|text| !text.contains('\0')) {
        return text.to_owned();
    }
    let mut text = String::new();
    for chunk in path.as_os_str().as_bytes().utf8_chunks() {
        // The file system refuses a path with a zero, and it must not be taken for the sign of another byte until then.
        text.push_str(&chunk.valid().replace('\0', "\x0000"));
        for byte in chunk.invalid() {
            let _ = write!(text, "\0{byte:02x}");
        }
    }
    text
}

/// Returns the bytes of the path that [`text_of`] gave a text for.
#[must_use]
pub fn bytes_of(text: &str) -> Cow<'_, [u8]> {
    let Some((before, escaped)) = text.split_once('\0') else {
        return Cow::Borrowed(text.as_bytes());
    };
    let mut bytes = before.as_bytes().to_vec();
    for part in escaped.split('\0') {
        let byte = part.get(..2).map(|hex| u8::from_str_radix(hex, 16));
        match byte {
            Some(Ok(byte)) => {
                bytes.push(byte);
                bytes.extend(&part.as_bytes()[2..]);
            }
            // It is no text of a path. No file has such a name.
            _ => bytes.extend([b"\0", part.as_bytes()].concat()),
        }
    }
    Cow::Owned(bytes)
}

/// Returns the folder `level` steps above the one that a file lies in.
fn ancestor(path: &Path, level: usize) -> &Path {
    let mut ancestors = path.ancestors().skip(1).peekable();
    let mut at = ancestors.next().unwrap_or(Path::new(""));
    for above in ancestors.take(level) {
        at = above;
    }
    at
}

/// Returns the deepest level at which the files lie in no more than [`MOST_FOLDERS`] folders, and these folders.
fn folders_of(paths: &[PathBuf]) -> (usize, Vec<&Path>) {
    // At the highest level every folder is `/` or the working directory, so the search always ends.
    let found = (0..).find_map(|level| Some((level, folders_at(paths, level)?)));
    found.unwrap_or_default()
}

/// Returns the folders at a level, or `None` if there are too many.
fn folders_at(paths: &[PathBuf], level: usize) -> Option<Vec<&Path>> {
    let mut folders = std::collections::HashSet::new();
    let mut last = None;
    for path in paths {
        let folder = ancestor(path, level);
        // Lists usually go folder by folder, so most paths need no look-up.
        if last != Some(folder.as_os_str()) {
            last = Some(folder.as_os_str());
            folders.insert(folder);
        }
        if folders.len() > MOST_FOLDERS {
            return None;
        }
    }
    Some(folders.into_iter().collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A folder of the test's own, removed when the test ends.
    struct TemporaryFolder(PathBuf);

    impl TemporaryFolder {
        fn new(name: &str) -> Self {
            let root = std::env::temp_dir().join(format!("coprep-{name}-{}", std::process::id()));
            std::fs::create_dir_all(root.join("data/sub")).expect("the folder is made");
            TemporaryFolder(root.canonicalize().expect("it is there"))
        }
    }

    impl Drop for TemporaryFolder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn every_spelling_of_a_folder_is_one() {
        let scratch = TemporaryFolder::new("spellings");
        let data = scratch.0.join("data");
        std::os::unix::fs::symlink(&data, scratch.0.join("link")).expect("a link");
        for spelling in [
            "data",
            "data/",
            "data/.",
            "./data",
            "data/sub/..",
            "link",
            "link/",
            "link/sub/..",
        ] {
            let path = scratch.0.join(spelling);
            assert_eq!(
                folder(&path).expect("it is there").as_os_str(),
                data.as_os_str(),
                "{spelling}"
            );
        }
    }

    #[test]
    fn a_missing_folder_keeps_its_name() {
        let scratch = TemporaryFolder::new("missing");
        std::os::unix::fs::symlink(scratch.0.join("data"), scratch.0.join("link")).expect("a link");
        let named = folder(&scratch.0.join("link/typo/train/")).expect("no error yet");
        assert_eq!(
            named.as_os_str(),
            scratch.0.join("data/typo/train").as_os_str()
        );
        assert!(folder(Path::new("")).is_err());
    }

    #[test]
    fn files_are_found_by_resolved_folders_and_keep_their_names() {
        let scratch = TemporaryFolder::new("files");
        let (root, data) = (&scratch.0, scratch.0.join("data"));
        std::os::unix::fs::symlink(&data, root.join("link")).expect("a link");
        std::os::unix::fs::symlink(root.join("elsewhere.jpg"), data.join("b.jpg")).expect("a link");
        let named = [
            "data/a.jpg",
            "link/b.jpg",
            "data/sub/../c.jpg",
            "link//sub/./d.jpg",
        ];
        let named: Vec<PathBuf> = named.iter().map(|path| root.join(path)).collect();
        let expected = ["a.jpg", "b.jpg", "c.jpg", "sub/d.jpg"].map(|name| data.join(name));
        assert_eq!(files(&named).expect("all is well"), expected);
        assert!(files(&[PathBuf::new()]).is_err());
    }

    #[test]
    fn a_path_comes_back_from_its_text_whatever_its_bytes() {
        for (bytes, text) in [
            (&b"/a/b.jpg"[..], "/a/b.jpg"),
            ("/a/\u{fffd}\u{e4}.jpg".as_bytes(), "/a/\u{fffd}\u{e4}.jpg"),
            (b"/\xff\xe4/b\xe4", "/\0ff\0e4/b\0e4"),
            (b"/a\0ff\xe4", "/a\x0000ff\0e4"),
        ] {
            let path = Path::new(std::ffi::OsStr::from_bytes(bytes));
            assert_eq!(text_of(path), text);
            assert_eq!(*bytes_of(text), *bytes);
        }
        for text in ["a\0", "a\0x", "\0\u{e4}", "\0\0"] {
            assert_eq!(*bytes_of(text), *text.as_bytes());
        }
    }

    #[test]
    fn a_file_in_the_working_directory_has_an_absolute_path() {
        let here = std::env::current_dir()
            .and_then(|path| path.canonicalize())
            .expect("it is there");
        let files = files(&["a.jpg".into(), "/b.jpg".into()]).expect("all is well");
        assert_eq!(files, [here.join("a.jpg"), "/b.jpg".into()]);
    }

    #[test]
    fn of_very_many_folders_those_above_are_resolved() {
        let scratch = TemporaryFolder::new("many");
        std::os::unix::fs::symlink(scratch.0.join("data"), scratch.0.join("link")).expect("a link");
        let name = |root: &str, i: usize| scratch.0.join(format!("{root}/{i}/x/image.jpg"));
        let named: Vec<PathBuf> = (0..=MOST_FOLDERS).map(|i| name("link", i)).collect();
        let expected: Vec<PathBuf> = (0..=MOST_FOLDERS).map(|i| name("data", i)).collect();
        assert_eq!(files(&named).expect("all is well"), expected);
    }
}
