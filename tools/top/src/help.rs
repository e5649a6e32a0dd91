//! The help text: keys and columns.

pub(crate) const HELP: &str = "\
KEYS     q, Esc, Ctrl-C: quit; p: pause; s: next sort; r: reverse;
         j, k, arrows: select a row; Tab: next table

fetching 3/8 +40   threads that fetch, of all; samples that wait for one
preparing 2/2 +5   threads that prepare, of the CPUs; samples that wait;
         both with worker processes, and as means of the interval
GPU-...  copies of minibatches a second: shared by jobs, and a job's own;
         waits: of the wall time of the jobs there
CACHES   filled: encoded, decoded, prepared (three shades, or e d p);
         form disk: encoded, on the local disk;
         hits: of the last interval's lookups
STREAMS  prep/s, deliv/s: samples; share: delivered for each prepared,
         in the interval and in all; free: staging buffers
JOBS     ep, done: epoch, and how much of it was drawn
         smp/s, bat/s: samples and batches given
         wait: of wall time; of it for fetch, for prep, for others (a
         cohort, a rank, a buffer that is held), or not known yet
         lag: samples fewer than the furthest job of the stream
         que: batches ready; held: buffers it keeps; idle: since its
         last batch; skip: samples left out; all:wait...: since it came
SLOW     samples that cost most, of the selected stream: means, in ms,
         when made anew";
