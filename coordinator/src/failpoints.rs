//! Fail points: points in the code where tests make a thread panic.
//!
//! They are [`fail`] points, and exist only in a build with the feature `failpoints`. Such a build of `coprep serve`
//! (`cargo build -p coprep-cli --features failpoints`) takes their actions from the environment:
//! `FAILPOINTS="worker-prepare=1%panic;driver-turn=5*off->panic"`. The tests of this crate always have them.
//!
//! | name | thread | point | cost of a panic there |
//! |---|---|---|---|
//! | `session-request` | session | a request was read, and is not answered | that connection; its client connects again |
//! | `session-attached` | session | a request to attach was answered | that connection; its client attaches again |
//! | `attach-locked` | session | a consumer was added, the stream's lock is held | the stream; its jobs find another |
//! | `driver-turn` | driver of a stream | at the start of a pass, no lock is held | the stream |
//! | `pump-locked` | driver, worker or session | the stream's lock is held | the stream |
//! | `worker-fetch` | worker | before a sample is read | nothing: it is read when it is prepared |
//! | `worker-prepare` | worker | before a sample is prepared; in relaxed order it has no slot | that sample, as a defect |
//! | `worker-bound` | worker | the sample has its slot, and is not written | that sample, as one that cannot be prepared |
//! | `worker-written` | worker or `code` | the sample is written, and is not counted | that sample, as a defect |
//! | `sample-failed-locked` | worker or `code` | a sample has failed, the stream's lock is held | the stream |
//! | `minibatch-done` | worker or `code` | the last sample of a minibatch is written | nothing |
//! | `worker-loop` | worker | between two tasks, no lock is held | the coordinator; jobs start another |
//! | `pool-begin` | `code`, which serves a worker process | before a sample is given to the process | that sample, as a defect |
//! | `pool-turn` | `code` | before it reads the process's messages | the process, which is replaced |
//! | `fork-server-listener` | `fork-server` | a message of the fork server was read | the fork server; a job forks another |
//! | `reply-writer` | replies | before a session's replies are sent | that connection |
//! | `disk-write` | disk-writer | before a sample is written to the local disk | that write: the sample is fetched again |
//! | `warm-worker` | worker | before a sample of a warm-up is prepared | that sample: it counts as failed |
//! | `main-accept` | main | a connection was accepted | that connection |
//! | `main-turn` | main | at the start of a pass | the coordinator, in good order |
//!
//! Each file of a native pipeline's dataset has a point of its own besides, `read PATH`, before it is read. With the
//! action `pause` the storage below it is dead until the action is `off`.

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    /// Adds the text between each `before` and the next `after` in the sources below `folder` to `found`.
    fn collect(folder: &Path, before: &str, after: &str, found: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a folder of sources") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                collect(&path, before, after, found);
            } else if !path.ends_with("failpoints.rs") {
                let text = std::fs::read_to_string(&path).expect("a source");
                let parts = text.split(before).skip(1);
                found.extend(parts.filter_map(|p| Some(p.split_once(after)?.0.to_owned())));
            }
        }
    }

    #[test]
    fn the_table_has_every_failpoint_and_no_other() {
        let mut used = BTreeSet::new();
        let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        collect(&sources, "fail_point!(\"", "\"", &mut used);
        let rows = include_str!("failpoints.rs").lines();
        let named = rows.filter_map(|row| Some(row.strip_prefix("//! | `")?.split_once('`')?.0));
        assert_eq!(used, named.map(str::to_owned).collect());
    }
}
