//! Credentials of S3 that a program of the user prints, as the setting `credential_process` of a profile says.
//!
//! The program runs once for all requests, on demand, and again when two thirds of the time of its credentials are over.
//! Meanwhile requests use the present ones, until they expire. No message repeats what it prints, because that holds secrets.

use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant, SystemTime};

use async_trait::async_trait;
use chrono::DateTime;
use coprep_shared_memory::lock::lock;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use object_store::aws::AwsCredential;
use object_store::{CredentialProvider, Result};
use serde::Deserialize;
use tokio::sync::{OwnedMutexGuard, oneshot};
use tokio::time::{sleep, timeout};

use crate::headers;
use crate::variables::Variables;

/// Longest time that a program may take to print credentials.
const PROGRAM_TIMEOUT: Duration = Duration::from_secs(60);
/// Time between two checks whether a program has ended that has closed its output.
const END_INTERVAL: Duration = Duration::from_millis(5);
/// Time for which a failure of the program is repeated. Hundreds of reads may ask at the same time.
const FAILURE_AGE: Duration = Duration::from_secs(2);
/// Most bytes that are read of what a program prints.
const MOST_PRINTED: u64 = 1 << 16;

/// The JSON that a program prints.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct PrintedCredentials {
    version: u32,
    access_key_id: String,
    secret_access_key: String,
    session_token: Option<String>,
    expiration: Option<String>,
}

/// The program, and its last credentials.
pub(crate) struct CredentialProcess(Arc<ProgramCredentials>);

struct ProgramCredentials {
    profile: String,
    command: String,
    /// The program finds them in its environment.
    variables: Variables,
    /// The outcome of the last run. The lock is never held while the program runs.
    last: Mutex<Option<LastRun>>,
    /// The lock that is held while the program runs, so that it runs once for all requests.
    running: Arc<tokio::sync::Mutex<()>>,
}

/// The outcome of the last run of a program.
#[derive(Clone)]
enum LastRun {
    Gave(GivenCredentials),
    Failed(Instant, String),
}

#[derive(Clone)]
struct GivenCredentials {
    credential: Arc<AwsCredential>,
    /// `None` for credentials that do not expire.
    lifetime: Option<Lifetime>,
}

/// Times of temporary credentials.
#[derive(Clone, Copy)]
struct Lifetime {
    renewal: SystemTime,
    end: SystemTime,
}

impl Lifetime {
    fn until(end: SystemTime) -> Lifetime {
        let now = SystemTime::now();
        let left = end.duration_since(now).unwrap_or(Duration::ZERO);
        Lifetime {
            renewal: now + left * 2 / 3,
            end,
        }
    }
}

impl CredentialProcess {
    pub(crate) fn new(profile: &str, command: &str, variables: &Variables) -> Self {
        CredentialProcess(Arc::new(ProgramCredentials {
            profile: profile.to_owned(),
            command: command.to_owned(),
            variables: variables.clone(),
            last: Mutex::default(),
            running: Arc::default(),
        }))
    }
}

impl std::fmt::Debug for CredentialProcess {
    // The command may hold a secret.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "CredentialProcess of the profile {}", self.0.profile)
    }
}

#[async_trait]
impl CredentialProvider for CredentialProcess {
    type Credential = AwsCredential;

    async fn get_credential(&self) -> Result<Arc<AwsCredential>> {
        let shared = self.0.clone();
        if let Some(LastRun::Gave(given)) = shared.last()
            && !given.has_expired()
        {
            if !given.is_fresh()
                && let Ok(running) = shared.running.clone().try_lock_owned()
            {
                tokio::spawn(async move { shared.renewed(running).await });
            }
            return Ok(given.credential);
        }
        // The renewal is a task of its own, since a request that is given up must not end the program that others wait for.
        let renewed = tokio::spawn(async move {
            let running = shared.running.clone().lock_owned().await;
            shared.renewed(running).await
        });
        let renewed = renewed
            .await
            .unwrap_or_else(|e| Err(format!("could not be asked: {e}")));
        renewed.map_err(|why| self.0.error(&why))
    }
}

impl GivenCredentials {
    fn is_fresh(&self) -> bool {
        self.lifetime
            .is_none_or(|lifetime| SystemTime::now() < lifetime.renewal)
    }

    fn has_expired(&self) -> bool {
        self.lifetime
            .is_some_and(|lifetime| SystemTime::now() >= lifetime.end)
    }

    /// Returns the credentials with a new time of renewal, or `None` if they have expired.
    fn prolonged(&self) -> Option<GivenCredentials> {
        let end = self.lifetime?.end;
        (!self.has_expired()).then(|| GivenCredentials {
            credential: self.credential.clone(),
            lifetime: Some(Lifetime::until(end)),
        })
    }
}

impl ProgramCredentials {
    fn last(&self) -> Option<LastRun> {
        lock(&self.last).clone()
    }

    /// Returns credentials, for which the program is run unless another request has just had them. If it fails, those of
    /// the run before serve until they expire. No other run begins while `_running` is held.
    async fn renewed(
        &self,
        _running: OwnedMutexGuard<()>,
    ) -> std::result::Result<Arc<AwsCredential>, String> {
        let present = match self.last() {
            Some(LastRun::Gave(given)) if given.is_fresh() => return Ok(given.credential),
            Some(LastRun::Gave(given)) => Some(given),
            Some(LastRun::Failed(when, why)) if when.elapsed() < FAILURE_AGE => return Err(why),
            Some(LastRun::Failed(..)) | None => None,
        };
        let printed = output_of(&self.command, &self.variables, PROGRAM_TIMEOUT).await;
        let printed = printed.and_then(|printed| credentials_in(&printed));
        // They may have expired while the program ran.
        let present = present.and_then(|given| given.prolonged());
        let (last, renewed) = match (printed, present) {
            (Ok(given), _) => (LastRun::Gave(given.clone()), Ok(given.credential)),
            (Err(why), Some(given)) => {
                let profile = &self.profile;
                tracing::warn!(profile, "the credential_process of the profile {why}");
                (LastRun::Gave(given.clone()), Ok(given.credential))
            }
            (Err(why), None) => (LastRun::Failed(Instant::now(), why.clone()), Err(why)),
        };
        *lock(&self.last) = Some(last);
        renewed
    }

    fn error(&self, why: &str) -> object_store::Error {
        let profile = &self.profile;
        object_store::Error::Generic {
            store: "S3",
            source: format!("the credential_process of the profile {profile} {why}").into(),
        }
    }
}

/// A program in a process group of its own, which is killed if it has not ended when this is dropped.
struct RunningProgram(Child);

impl RunningProgram {
    /// Waits until the program has ended.
    async fn end(&mut self) -> io::Result<ExitStatus> {
        loop {
            if let Some(status) = self.0.try_wait()? {
                return Ok(status);
            }
            sleep(END_INTERVAL).await;
        }
    }
}

impl Drop for RunningProgram {
    fn drop(&mut self) {
        // Once it was waited for, its id may be that of another process.
        if let Ok(None) = self.0.try_wait() {
            let _ = killpg(Pid::from_raw(self.0.id() as i32), Signal::SIGKILL);
            let _ = self.0.wait();
        }
    }
}

/// Runs a command of the shell and returns what it prints. An error says what is wrong, but nothing that was printed.
async fn output_of(
    command: &str,
    variables: &Variables,
    most: Duration,
) -> std::result::Result<Vec<u8>, String> {
    let mut shell = Command::new("/bin/sh");
    variables.apply_to(&mut shell);
    let child = shell
        .args(["-c", command])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        // The program might print a secret there, and this process's stderr is the log.
        .stderr(Stdio::null())
        .process_group(0)
        .spawn();
    let mut program = RunningProgram(child.map_err(|e| format!("cannot be started: {e}"))?);
    let Some(stdout) = program.0.stdout.take() else {
        return Err("has no output".into());
    };
    // The thread is none of the runtime's, which would wait for it when this process ends. It ends with the program.
    let (sender, printed) = oneshot::channel();
    let reading = move || {
        let mut printed = Vec::new();
        let read = stdout.take(MOST_PRINTED).read_to_end(&mut printed);
        // Nobody listens if the program was given up.
        let _ = sender.send(read.map(|_| printed));
    };
    std::thread::Builder::new()
        .name("credentials".into())
        .spawn(reading)
        .map_err(|e| format!("cannot be read: {e}"))?;
    let ended = timeout(most, async { (printed.await, program.end().await) }).await;
    let Ok((printed, status)) = ended else {
        return Err(format!("has not ended after {} s", most.as_secs()));
    };
    let status = status.map_err(|e| format!("cannot be waited for: {e}"))?;
    if !status.success() {
        return Err(format!("has failed ({status}): run it by hand to see why"));
    }
    let printed = printed.unwrap_or_else(|_| Err(io::ErrorKind::BrokenPipe.into()));
    printed.map_err(|e| format!("cannot be read: {e}"))
}

fn credentials_in(printed: &[u8]) -> std::result::Result<GivenCredentials, String> {
    // The message of the parser is left out, because it may repeat a secret.
    let printed: PrintedCredentials = serde_json::from_slice(printed).map_err(|_| {
        "has not printed JSON with Version, AccessKeyId and SecretAccessKey".to_owned()
    })?;
    if printed.version != 1 {
        let version = printed.version;
        return Err(format!("has printed Version {version}, and not 1"));
    }
    let lifetime = match &printed.expiration {
        None => None,
        Some(text) => {
            let end = DateTime::parse_from_rfc3339(text)
                .map_err(|_| "has printed an Expiration that is no time".to_owned())?;
            Some(Lifetime::until(end.into()))
        }
    };
    let keys = AwsCredential {
        key_id: printed.access_key_id,
        secret_key: printed.secret_access_key,
        token: printed.session_token,
    };
    headers::check_keys(&keys).map_err(|why| format!("has printed what cannot be sent: {why}"))?;
    Ok(GivenCredentials {
        credential: Arc::new(keys),
        lifetime,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use coprep_protocol::store_variables::StoreVariables;

    use super::*;

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .enable_all()
            .build()
            .unwrap()
    }

    fn run(command: &str, most: Duration) -> std::result::Result<Vec<u8>, String> {
        runtime().block_on(output_of(command, &Variables::default(), most))
    }

    #[test]
    fn a_program_prints_on_its_output_alone() {
        let minute = Duration::from_secs(60);
        assert_eq!(run("echo yes; echo HIDDEN >&2", minute).unwrap(), b"yes\n");
        let failed = run("echo HIDDEN; exit 3", minute).unwrap_err();
        assert!(
            failed.contains("exit status: 3") && !failed.contains("HIDDEN"),
            "{failed}"
        );
    }

    #[test]
    fn a_program_has_the_variables_of_the_job_and_the_path_of_this_process() {
        let mut variables = Variables::complete(StoreVariables::default());
        variables.set("AWS_OF_JOB", "job");
        let runtime = runtime();
        let minute = Duration::from_secs(60);
        let command = "echo $AWS_OF_JOB $HOME $PATH";
        let printed = runtime.block_on(output_of(command, &variables, minute));
        let of_process = |name| std::env::var(name).unwrap();
        let expected = format!("job {} {}\n", of_process("HOME"), of_process("PATH"));
        assert_eq!(String::from_utf8(printed.unwrap()).unwrap(), expected);
    }

    #[test]
    fn a_program_that_does_not_end_is_killed_with_all_that_it_has_started() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("pid");
        // The one closes its output and stays, the other keeps it open in a process that the shell has started.
        for stays in ["exec >&-; sleep 600", "sleep 600 & wait"] {
            let command = format!("echo $$ > {}; {stays}", path.display());
            let error = run(&command, Duration::from_millis(300)).unwrap_err();
            assert!(error.contains("has not ended after"), "{error}");
            let group = std::fs::read_to_string(&path).unwrap();
            // A process that was killed takes a moment to end.
            let began = Instant::now();
            while has_processes(group.trim()) {
                assert!(began.elapsed() < Duration::from_secs(10), "{stays}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    /// Returns the output of a program that gives credentials of this name.
    fn printed(name: &str) -> String {
        format!(
            "{{\"Version\": 1, \"AccessKeyId\": \"{name}\", \"SecretAccessKey\": \"HIDDEN\", \
             \"Expiration\": \"2100-01-01T00:00:00Z\"}}"
        )
    }

    #[test]
    fn requests_have_the_present_credentials_while_the_program_runs_for_new_ones() {
        let folder = tempfile::tempdir().unwrap();
        let path = |name: &str| folder.path().join(name);
        std::fs::write(path("printed"), printed("new")).unwrap();
        let (begun, go, file) = (path("begun"), path("go"), path("printed"));
        let command = format!(
            "echo x >> {}; until [ -e {} ]; do sleep 0.01; done; cat {}",
            begun.display(),
            go.display(),
            file.display()
        );
        let process = CredentialProcess::new("p", &command, &Variables::default());
        let mut old = credentials_in(printed("old").as_bytes()).ok().unwrap();
        let end = SystemTime::now() + Duration::from_secs(3600);
        old.lifetime = Some(Lifetime {
            renewal: SystemTime::now(),
            end,
        });
        *lock(&process.0.last) = Some(LastRun::Gave(old));
        let runtime = runtime();
        let key = || {
            let credential = runtime.block_on(process.get_credential());
            credential.unwrap().key_id.clone()
        };
        assert_eq!(key(), "old");
        while !begun.exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!([key(), key()], ["old", "old"]);
        std::fs::write(&go, "").unwrap();
        // The runner ends a test that hangs.
        while key() == "old" {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(key(), "new");
        assert_eq!(std::fs::read_to_string(&begun).unwrap(), "x\n");
    }

    #[test]
    fn expired_credentials_are_given_to_nobody() {
        let process = CredentialProcess::new("p", "exit 3", &Variables::default());
        let mut old = credentials_in(printed("old").as_bytes()).ok().unwrap();
        let now = SystemTime::now();
        old.lifetime = Some(Lifetime {
            renewal: now,
            end: now,
        });
        *lock(&process.0.last) = Some(LastRun::Gave(old));
        let error = runtime().block_on(process.get_credential()).unwrap_err();
        assert!(error.to_string().contains("exit status: 3"), "{error}");
    }

    /// Returns `true` if a living process is in this process group.
    fn has_processes(group: &str) -> bool {
        let stat = |folder: std::io::Result<std::fs::DirEntry>| {
            std::fs::read_to_string(folder.unwrap().path().join("stat")).ok()
        };
        let stats = std::fs::read_dir(Path::new("/proc"))
            .unwrap()
            .filter_map(stat);
        stats.into_iter().any(|stat| {
            let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
            fields[2] == group && fields[0] != "Z"
        })
    }

    #[test]
    fn what_a_program_prints_is_checked_and_never_repeated() {
        let printed = |rest: &str| {
            let text = format!("{{\"AccessKeyId\": \"K\", \"SecretAccessKey\": \"HIDDEN\"{rest}}}");
            credentials_in(text.as_bytes())
        };
        let given = printed(", \"Version\": 1").ok().unwrap();
        assert_eq!(given.credential.key_id, "K");
        assert!(given.lifetime.is_none() && given.is_fresh() && given.prolonged().is_none());
        let whole =
            ", \"Version\": 1, \"SessionToken\": \"T\", \"Expiration\": \"2100-01-01T00:00:00Z\"";
        let given = printed(whole).ok().unwrap();
        assert_eq!(given.credential.token.as_deref(), Some("T"));
        let lifetime = given.lifetime.unwrap();
        assert!(SystemTime::now() < lifetime.renewal && lifetime.renewal < lifetime.end);
        for wrong in [
            "",
            ", \"Version\": 2",
            ", \"Version\": 1, \"Expiration\": \"HIDDEN\"",
        ] {
            let error = printed(wrong).err().unwrap();
            assert!(!error.contains("HIDDEN"), "{error}");
        }
    }
}
