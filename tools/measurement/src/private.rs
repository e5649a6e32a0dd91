//! A coordinator for one measurement: nobody else uses it, and it ends with the measurement.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use coprep_client::control;
use coprep_protocol::message::Status;
use coprep_protocol::paths::CoordinatorPaths;
use tempfile::TempDir;

use crate::scratch::scratch_folder;
use crate::{Result, interrupt};

/// Longest time until the coordinator listens, and until it has ended.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Time between two checks for either.
const POLL_INTERVAL: Duration = Duration::from_millis(10);

/// A coordinator for one measurement. It is stopped when it is dropped.
pub struct PrivateCoordinator {
    child: Child,
    /// Address of the coordinator.
    pub paths: CoordinatorPaths,
    folder: TempDir,
}

impl PrivateCoordinator {
    /// Runs `serve` of the `coprep` program with these arguments, and waits until it listens.
    ///
    /// # Errors
    /// If the coordinator ends or does not listen in time. The error has its log.
    pub fn start(program: &Path, arguments: &[String]) -> Result<Self> {
        let folder = scratch_folder()?;
        let paths = CoordinatorPaths::at(folder.path().join("socket"));
        let log = std::fs::File::create(folder.path().join("log"))?;
        let mut command = serve_command(program, arguments, &paths, names_of_variables());
        let mut started = PrivateCoordinator {
            child: command.stderr(log).spawn()?,
            paths,
            folder,
        };
        started.wait_until_it_listens()?;
        Ok(started)
    }

    fn wait_until_it_listens(&mut self) -> Result<()> {
        let end = Instant::now() + TIMEOUT;
        while control::status(&self.paths, 0).is_err() {
            if let Some(how) = self.child.try_wait()? {
                return Err(format!("its coordinator ended ({how}): {}", self.log()).into());
            }
            if Instant::now() > end {
                return Err(format!("its coordinator does not listen: {}", self.log()).into());
            }
            interrupt::check()?;
            std::thread::sleep(POLL_INTERVAL);
        }
        Ok(())
    }

    /// Returns the coordinator's log, for error messages.
    fn log(&self) -> String {
        let path: PathBuf = self.folder.path().join("log");
        std::fs::read_to_string(path)
            .unwrap_or_default()
            .trim()
            .into()
    }

    /// Returns the process id of the coordinator.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the present status of the coordinator.
    ///
    /// # Errors
    /// If it does not answer.
    pub fn status(&self) -> Result<Status> {
        Ok(control::status(&self.paths, 0)?)
    }
}

fn names_of_variables() -> impl Iterator<Item = OsString> {
    std::env::vars_os().map(|(name, _)| name)
}

/// Returns the command that runs the coordinator, without the settings of this process's user.
///
/// A setting would change what is measured. `COPREP_LOG` would too, since a detailed log takes processor time.
///
/// `inherited` are the names of the variables in the environment of this process.
fn serve_command(
    program: &Path,
    arguments: &[String],
    paths: &CoordinatorPaths,
    inherited: impl IntoIterator<Item = OsString>,
) -> Command {
    let mut command = Command::new(program);
    command
        .arg("serve")
        // If this process is killed, the coordinator ends by itself after a minute.
        .args(["--idle", "60"])
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::null());
    for name in inherited {
        if name.as_encoded_bytes().starts_with(b"COPREP_") {
            command.env_remove(name);
        }
    }
    // This comes last, since the user may have named a socket too.
    command.env("COPREP_SOCKET", &paths.socket);
    command
}

impl Drop for PrivateCoordinator {
    fn drop(&mut self) {
        // The coordinator may have ended already, or may not answer. The loop below finds out.
        let _ = control::stop(&self.paths);
        let end = Instant::now() + TIMEOUT;
        while matches!(self.child.try_wait(), Ok(None)) {
            if Instant::now() > end {
                // It does not end when asked, and must not outlive the measurement.
                let _ = self.child.kill();
                let _ = self.child.wait();
                return;
            }
            std::thread::sleep(POLL_INTERVAL);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn no_setting_of_the_user_reaches_the_coordinator() {
        let paths = CoordinatorPaths::at("/nowhere/socket".into());
        let names = ["COPREP_CACHE", "COPREP_LOG", "COPREP_SOCKET", "PATH"].map(OsString::from);
        let command = serve_command(Path::new("coprep"), &[], &paths, names);
        let changes: Vec<_> = command.get_envs().collect();
        let socket = paths.socket.as_os_str();
        let expected: [(&str, Option<&OsStr>); 3] = [
            ("COPREP_CACHE", None),
            ("COPREP_LOG", None),
            ("COPREP_SOCKET", Some(socket)),
        ];
        assert_eq!(
            changes,
            expected.map(|(name, value)| (OsStr::new(name), value))
        );
    }
}
