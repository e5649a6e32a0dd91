//! Checks of files that somebody else may have put where the coordinator's files belong.
//!
//! Files of another user need a second user. As root, these tests run themselves as other users; without root they are
//! left out.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::fs::{self, Permissions};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use coprep_protocol::paths::{CoordinatorPaths, open_private};

/// Users that own no file.
const ME: u32 = 23_456;
const OTHER: u32 = 23_457;

/// Environment variable with the path that a child process opens or prepares.
const ROLE: &str = "COPREP_TEST_PRIVATE";

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
}

fn refusal(path: &Path) -> String {
    open_private(path).unwrap_err().to_string()
}

#[test]
fn what_is_there_is_opened_only_if_nobody_else_may_use_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    let made = open_private(&path("new")).unwrap();
    assert_eq!(made.metadata().unwrap().mode() & 0o777, 0o600);
    assert!(open_private(&path("new")).is_ok(), "it is there now");

    symlink(path("aim"), path("link")).unwrap();
    fs::write(path("open"), "").unwrap();
    set_mode(&path("open"), 0o666);
    fs::hard_link(path("new"), path("second name")).unwrap();
    nix::unistd::mkfifo(&path("pipe"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    fs::create_dir(path("folder")).unwrap();
    let socket = std::os::unix::net::UnixListener::bind(path("socket")).unwrap();
    for name in ["link", "open", "second name", "pipe", "folder", "socket"] {
        let why = refusal(&path(name));
        assert!(
            why.contains("remove it") && why.contains("COPREP_SOCKET"),
            "{name}: {why}"
        );
    }
    drop(socket);
    assert!(!path("aim").exists(), "nothing is made through a link");
}

/// Runs a test of this program as another user, who may reach neither the repository nor its folders.
fn run_as(user: u32, test: &str, role: &Path, program: &Path) -> String {
    let run = Command::new(program)
        .args(["--exact", test, "--nocapture"])
        .env(ROLE, role)
        .env_remove("XDG_RUNTIME_DIR")
        .current_dir("/")
        .uid(user)
        .gid(user)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&run.stdout).into_owned();
    assert!(run.status.success(), "{said}{run:?}");
    said
}

/// Copies this program to a folder where any user finds it.
fn program(folder: &Path) -> PathBuf {
    set_mode(folder, 0o755);
    let copy = folder.join("program");
    fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
    set_mode(&copy, 0o755);
    copy
}

#[test]
fn role() {
    let Some(path) = std::env::var_os(ROLE).map(PathBuf::from) else {
        return;
    };
    let paths = CoordinatorPaths::at(path.clone());
    if let Err(e) = paths.check_socket() {
        println!("socket refused: {e}");
    }
    match paths.prepare() {
        Err(e) => println!("folder refused: {e}"),
        Ok(()) => match open_private(&path) {
            Err(e) => println!("file refused: {e}"),
            Ok(_) => println!("had"),
        },
    }
}

#[test]
fn what_belongs_to_another_user_is_refused() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let program = program(folder.path());
    let shared = folder.path().join("shared");
    fs::create_dir(&shared).unwrap();
    set_mode(&shared, 0o1777);
    let file = |name: &str, mode| {
        let path = shared.join(name);
        fs::write(&path, "").unwrap();
        chown(&path, Some(OTHER), None).unwrap();
        set_mode(&path, mode);
        path
    };
    for (name, mode) in [("writable", 0o666), ("private", 0o600)] {
        let said = run_as(ME, "role", &file(name, mode), &program);
        assert!(
            said.contains("file refused: ") && said.contains("user 23456"),
            "{said}"
        );
        assert!(
            said.contains("socket refused: ") && said.contains("to user 23457, not"),
            "{said}"
        );
    }
    let said = run_as(ME, "role", &shared.join("new"), &program);
    assert!(said.contains("had"), "{said}");
}

#[test]
fn a_folder_that_cannot_be_entered_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let refused = |socket: PathBuf| {
        let why = CoordinatorPaths::at(socket).prepare().unwrap_err();
        assert!(why.to_string().contains("COPREP_SOCKET"), "{why}");
        why.to_string()
    };
    let (file, ring) = (folder.path().join("file"), folder.path().join("ring"));
    fs::write(&file, "").unwrap();
    symlink(&ring, &ring).unwrap();
    assert!(refused(file.join("socket")).contains("Not a directory"));
    assert!(refused(ring.join("socket")).contains("Too many levels of symbolic links"));
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let program = program(folder.path());
    let closed = folder.path().join("closed");
    fs::create_dir(&closed).unwrap();
    set_mode(&closed, 0o700);
    for socket in [closed.join("socket"), closed.join("below").join("socket")] {
        let said = run_as(ME, "role", &socket, &program);
        assert!(
            said.contains("folder refused: ") && said.contains("Permission denied"),
            "{said}"
        );
    }
}

#[test]
fn the_folder_in_tmp_must_be_private() {
    if !nix::unistd::geteuid().is_root() {
        return;
    }
    let programs = tempfile::tempdir().unwrap();
    let program = program(programs.path());
    let folder = PathBuf::from(format!("/tmp/coprep-{ME}-{}", std::process::id()));
    let said = || run_as(ME, "role", &folder.join("coordinator.sock"), &program);
    let refused = |what: &str| {
        let said = said();
        assert!(
            said.contains("folder refused: ") && said.contains("remove it"),
            "{what}: {said}"
        );
    };
    fs::create_dir(&folder).unwrap();
    chown(&folder, Some(OTHER), None).unwrap();
    set_mode(&folder, 0o777);
    refused("another's");
    chown(&folder, Some(ME), None).unwrap();
    refused("open to all");
    set_mode(&folder, 0o700);
    assert!(said().contains("had"));
    let moved = folder.with_extension("moved");
    fs::rename(&folder, &moved).unwrap();
    symlink(&moved, &folder).unwrap();
    refused("a link");
    fs::remove_file(&folder).unwrap();
    fs::remove_dir_all(&moved).unwrap();
}
