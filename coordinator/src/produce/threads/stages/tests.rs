//! Which task a thread begins, and what becomes of reads that are shared or stuck.

use std::time::Duration;

use super::*;

/// Memory takes samples with a capital letter, and refuses those with a digit. Nobody wants `u` and `v` any more. Those with
/// a Greek letter are read without a thread. Those called `l` are large.
impl StageWork for char {
    fn needs_fetch(&self) -> bool {
        !self.is_ascii_uppercase() && !['u', 'v'].contains(self)
    }

    fn is_to_cache(&self) -> bool {
        self.is_ascii_uppercase() || self.is_ascii_digit()
    }

    fn may_detach(&self) -> bool {
        ('α'..='ω').contains(self)
    }

    fn expected_bytes(&self) -> Option<u64> {
        match self {
            'l' => Some(LARGE),
            '?' => None,
            _ => Some(1),
        }
    }
}

const LARGE: u64 = MOST_HELD / 4;

/// Returns a pool with samples of these names, in the order in which they are due.
fn pool(cpus: u32, threads: u32, to_fetch: &str, to_prepare: &str) -> StageQueues<char> {
    let now = Instant::now();
    let mut stages = StageQueues::new(cpus, true, now);
    stages.limit(cpus, threads);
    for (i, name) in to_fetch.chars().enumerate() {
        stages.submit(now, Deadline::at(i as f64), true, Some(SOURCE), name);
    }
    for (i, name) in to_prepare.chars().enumerate() {
        stages.submit(now, Deadline::at(i as f64 + 0.5), false, None, name);
    }
    stages
}

const SOURCE: SourceFile = SourceFile {
    source: 1,
    sample: 0,
};
const OTHER: SourceFile = SourceFile {
    source: 2,
    sample: 0,
};

/// Lets a thread that does nothing yet begin a task. Returns the thread and the task.
fn begin(stages: &mut StageQueues<char>, now: Instant) -> Option<(usize, String)> {
    let free = stages.under_way.iter().position(Option::is_none);
    let thread = free.unwrap_or(stages.under_way.len());
    let task = match stages.next(now, thread)? {
        ThreadTask::BeginFetch(name) => format!("b{name} "),
        ThreadTask::Fetch(name, None) => format!("f{name} "),
        ThreadTask::Fetch(name, Some(_)) => format!("a{name} "),
        ThreadTask::Prepare(name, _) => format!("p{name} "),
    };
    Some((thread, task))
}

/// Returns the tasks that threads are given, one after the other.
fn begun_at(stages: &mut StageQueues<char>, now: Instant) -> String {
    std::iter::from_fn(|| Some(begin(stages, now)?.1)).collect()
}

fn begun(stages: &mut StageQueues<char>) -> String {
    begun_at(stages, Instant::now())
}

/// Returns the thread that has been at a task for longest.
fn first_at(stages: &StageQueues<char>, stage: Stage) -> usize {
    let steps = stages.under_way.iter().enumerate();
    let at_stage = steps.filter_map(|(thread, step)| Some((thread, step.as_ref()?)));
    let mut threads = at_stage.filter(|(_, step)| step.stage == stage);
    threads.next().expect("a task at this stage").0
}

fn fetched_by(stages: &mut StageQueues<char>, now: Instant, thread: usize, ready: Ready) {
    stages.done(now, thread, CompletedTask::Fetched('.', ready));
}

fn ready(due: f64) -> Ready {
    Ready {
        due: Deadline::at(due),
        bytes: 1,
        is_answered: true,
        ..Ready::default()
    }
}

fn fetched(stages: &mut StageQueues<char>, name: char, due: f64) {
    let thread = first_at(stages, Stage::Fetch);
    let done = CompletedTask::Fetched(name, ready(due));
    stages.done(Instant::now(), thread, done);
}

fn prepared(stages: &mut StageQueues<char>) {
    let thread = first_at(stages, Stage::Prepare);
    let done = CompletedTask::Prepared(Box::default());
    stages.done(Instant::now(), thread, done);
}

#[test]
fn without_more_threads_than_processors_what_is_due_first_is_begun_first() {
    assert_eq!(begun(&mut pool(3, 3, "ab", "xy")), "fa px fb ");
    assert_eq!(begun(&mut pool(1, 1, "", "x")), "px ");
}

#[test]
fn whoever_fetched_a_sample_goes_on_with_it() {
    let mut stages = pool(1, 1, "ab", "");
    assert_eq!(begun(&mut stages), "fa ");
    fetched(&mut stages, 'a', 0.0);
    assert_eq!(begun(&mut stages), "pa ");
}

#[test]
fn more_threads_fetch_and_never_prepare_more_than_there_are_processors() {
    assert_eq!(begun(&mut pool(1, 4, "abcd", "xyz")), "px fa fb fc ");
    assert_eq!(begun(&mut pool(2, 4, "", "xyz")), "px py ");
}

#[test]
fn no_more_is_fetched_than_can_soon_be_prepared() {
    let mut stages = pool(1, 2, "abcdefgh", "");
    for name in "abc".chars() {
        stages.submit(Instant::now(), Deadline::default(), false, None, name);
    }
    assert_eq!(begun(&mut stages), "pa fa ");
    fetched(&mut stages, 'a', 9.0);
    assert_eq!(begun(&mut stages), "", "three wait already");
    prepared(&mut stages);
    assert_eq!(begun(&mut stages), "pb fb ");
}

#[test]
fn large_samples_are_fetched_fewer_at_a_time() {
    let mut stages = pool(1, 8, "llllllll", "");
    assert_eq!(begun(&mut stages), "fl fl fl fl ");
    let large = || Ready {
        bytes: LARGE,
        is_answered: true,
        ..Ready::default()
    };
    for thread in 0..3 {
        fetched_by(&mut stages, Instant::now(), thread, large());
    }
    // One is prepared, two wait and one is being read.
    assert_eq!(begun(&mut stages), "p. fl ");
    assert_eq!(stages.held + stages.incoming, MOST_HELD);
    // A sample that is being prepared does not count any more, and all reads end.
    for _ in 0..6 {
        prepared(&mut stages);
        begun(&mut stages);
        while let Some(thread) = stages.under_way.iter().position(is_fetch) {
            fetched_by(&mut stages, Instant::now(), thread, large());
        }
        assert!(stages.held + stages.incoming <= MOST_HELD);
    }
}

fn is_fetch(step: &Option<Step>) -> bool {
    step.as_ref().is_some_and(|step| step.stage == Stage::Fetch)
}

#[test]
fn samples_of_unknown_size_count_as_those_that_were_fetched_last() {
    let mut stages = pool(1, 500, &"?".repeat(500), "");
    let first = begun(&mut stages).matches('f').count() as u64;
    assert_eq!(first, MOST_HELD / FIRST_GUESS);
    for thread in 0..100 {
        fetched_by(&mut stages, Instant::now(), thread, ready(0.0));
    }
    assert!(stages.typical < FIRST_GUESS / 100);
    // All of the others.
    assert_eq!(begun(&mut stages).matches('f').count() as u64, 500 - first);
}

#[test]
fn reads_that_are_stuck_keep_no_memory_from_others() {
    let now = Instant::now();
    let mut stages = pool(1, 8, "llll", "");
    assert_eq!(begun_at(&mut stages, now), "fl fl fl fl ");
    stages.submit(now, Deadline::at(9.0), true, Some(OTHER), 'l');
    assert_eq!(begun_at(&mut stages, now), "");
    maintain(&mut stages, now + STUCK, false);
    assert_eq!(begun_at(&mut stages, now + STUCK), "fl ");
    for thread in 0..4 {
        fetched_by(&mut stages, now + STUCK, thread, ready(0.0));
    }
    assert_eq!(stages.incoming, LARGE);
}

#[test]
fn a_processor_that_is_taken_away_is_given_up_when_it_is_free() {
    let mut stages = pool(2, 2, "", "wxyz");
    assert_eq!(begun(&mut stages), "pw px ");
    stages.limit(1, 1);
    prepared(&mut stages);
    assert_eq!(begun(&mut stages), "");
    prepared(&mut stages);
    assert_eq!(begun(&mut stages), "py ");
}

#[test]
fn threads_that_are_too_many_by_now_keep_nobody_from_preparing() {
    for threads in [2, 3] {
        let mut stages = pool(2, 8, "abcdefgh", "");
        assert_eq!(begun(&mut stages), "fa fb fc fd fe ff fg fh ");
        stages.limit(2, threads);
        for name in "abc".chars() {
            fetched(&mut stages, name, 0.0);
        }
        assert_eq!(begun(&mut stages), "pa pb ", "{threads} threads");
    }
}

#[test]
fn what_is_lacking_is_what_the_threads_wait_for() {
    let second = Duration::from_secs(1);
    let stalls_of = |mut stages: StageQueues<char>, starts: usize| {
        for thread in 0..starts {
            stages.next(stages.until, thread);
        }
        let before = stages.stall_clock();
        stages.advance_clock(stages.until + second);
        let shares = stages.stall_clock().since(&before, Duration::ZERO);
        (shares.fetch >> 14, shares.prep >> 14)
    };
    // Compared in quarters.
    assert_eq!(stalls_of(pool(2, 2, "", ""), 0), (0, 0));
    assert_eq!(stalls_of(pool(2, 2, "", "xy"), 2), (0, 4));
    assert_eq!(stalls_of(pool(2, 2, "a", "x"), 2), (2, 2));
    assert_eq!(stalls_of(pool(2, 6, "abcd", "x"), 5), (4, 0));
    assert_eq!(stalls_of(pool(2, 6, "abcd", "xyz"), 5), (0, 4));
}

/// Starts the threads that the pool wants after maintenance.
fn maintain(stages: &mut StageQueues<char>, now: Instant, reads_in_prepare: bool) {
    stages.maintain(now, |_| reads_in_prepare);
    stages.set_started(stages.started.max(stages.wanted_threads()));
}

#[test]
fn dead_storage_stops_its_own_samples_only() {
    let mut stages = pool(2, 2, "abcdefgh", "");
    let now = Instant::now();
    assert_eq!(begun_at(&mut stages, now), "fa fb ");
    for name in "xyz".chars() {
        stages.submit(now, Deadline::at(99.0), true, Some(OTHER), name);
    }
    maintain(&mut stages, now + STUCK / 2, false);
    assert_eq!(begun_at(&mut stages, now + STUCK / 2), "", "not yet");
    let later = now + STUCK;
    maintain(&mut stages, later, false);
    assert_eq!(stages.now().apart, 2);
    // Both threads are replaced, and a third one probes the source.
    assert_eq!(stages.started, 5);
    assert_eq!(begun_at(&mut stages, later), "fx fy fc ");
    maintain(&mut stages, later, false);
    assert_eq!((stages.started, stages.now().to_fetch), (5, 6));
}

#[test]
fn a_source_that_answers_goes_on_and_no_sample_is_lost() {
    let mut stages = pool(2, 2, "abcdefgh", "");
    let mut now = Instant::now();
    let mut seen = String::new();
    for _ in 0..10 {
        seen += &begun_at(&mut stages, now);
        maintain(&mut stages, now + STUCK, false);
        seen += &begun_at(&mut stages, now + STUCK);
        now += STUCK * 3 / 2;
        for thread in 0..stages.under_way.len() {
            match &stages.under_way[thread] {
                Some(step) if step.stage == Stage::Fetch => {
                    fetched_by(&mut stages, now, thread, ready(0.0));
                }
                Some(_) => stages.done(now, thread, CompletedTask::Prepared(Box::default())),
                None => {}
            }
        }
    }
    let mut reads: Vec<&str> = seen.split(' ').filter(|s| s.starts_with('f')).collect();
    reads.sort_unstable();
    assert_eq!(reads, ["fa", "fb", "fc", "fd", "fe", "ff", "fg", "fh"]);
    assert_eq!(stages.sums.prepared, 8);
    let now = stages.now();
    assert_eq!((now.apart, now.fetching, now.preparing), (0, 0, 0));
    assert_eq!((now.to_fetch, now.to_prepare), (0, 0));
}

#[test]
fn a_sample_that_is_read_while_it_is_prepared_is_set_apart_and_one_that_is_decoded_is_not() {
    for is_reading in [true, false] {
        let now = Instant::now();
        let mut stages = pool(1, 1, "", "");
        stages.submit(now, Deadline::default(), false, Some(SOURCE), 'a');
        stages.submit(now, Deadline::at(9.0), false, None, 'b');
        assert_eq!(begun_at(&mut stages, now), "pa ");
        maintain(&mut stages, now + STUCK, is_reading);
        let next = if is_reading { "pb " } else { "" };
        assert_eq!(begun_at(&mut stages, now + STUCK), next);
    }
}

#[test]
fn a_sample_that_a_slow_source_failed_to_give_is_read_again_apart() {
    let now = Instant::now();
    let mut stages = pool(1, 1, "a", "");
    assert_eq!(begun_at(&mut stages, now), "fa ");
    maintain(&mut stages, now + STUCK, false);
    let failed = Ready {
        is_unread: true,
        ..Ready::default()
    };
    fetched_by(&mut stages, now + STUCK, 0, failed);
    maintain(&mut stages, now + STUCK, false);
    assert_eq!(begun_at(&mut stages, now + STUCK), "p. ");
    let counts = stages.now();
    assert_eq!((counts.apart, counts.preparing), (1, 0));
}

#[test]
fn samples_of_a_slow_source_that_nobody_wants_are_ended() {
    let now = Instant::now();
    let mut stages = pool(1, 1, "auv", "");
    assert_eq!(begun_at(&mut stages, now), "fa ");
    stages.maintain(now + STUCK, |_| false);
    assert_eq!(begun_at(&mut stages, now + STUCK), "fu ");
    fetched_by(&mut stages, now + STUCK, 1, Ready::default());
    assert_eq!(begun_at(&mut stages, now + STUCK), "p. ");
}

fn done_fetching(stages: &mut StageQueues<char>, thread: usize, name: char, due: f64) {
    let done = CompletedTask::Fetched(name, ready(due));
    stages.done(Instant::now(), thread, done);
}

fn done_preparing(stages: &mut StageQueues<char>, thread: usize) {
    let done = CompletedTask::Prepared(Box::default());
    stages.done(Instant::now(), thread, done);
}

#[test]
fn a_file_that_memory_will_hold_is_read_by_one_task_and_the_others_prepare_it_from_memory() {
    // Three tasks for the same file.
    let mut stages = pool(2, 8, "ABC", "");
    assert_eq!(begun(&mut stages), "fA ");
    assert_eq!(stages.now().to_fetch, 2);
    done_fetching(&mut stages, 0, 'A', 0.0);
    assert_eq!(begun(&mut stages), "pA ");
    done_preparing(&mut stages, 0);
    assert_eq!(begun(&mut stages), "pB pC ");
    assert_eq!(stages.now().to_fetch, 0);
}

#[test]
fn a_file_that_memory_refused_is_read_by_the_next_task() {
    let mut stages = pool(2, 8, "123", "");
    for name in "123".chars() {
        assert_eq!(begun(&mut stages), format!("f{name} "));
        done_fetching(&mut stages, 0, name, 0.0);
        assert_eq!(begun(&mut stages), format!("p{name} "));
        done_preparing(&mut stages, 0);
    }
    assert_eq!(begun(&mut stages), "");
}

#[test]
fn files_that_memory_will_not_hold_and_other_files_are_read_at_the_same_time() {
    assert_eq!(begun(&mut pool(2, 8, "ab", "")), "fa fb ");
    let mut stages = pool(2, 8, "A", "");
    let (now, other) = (Instant::now(), Some(OTHER));
    stages.submit(now, Deadline::at(9.0), true, other, 'B');
    assert_eq!(begun(&mut stages), "fA fB ");
}

#[test]
fn a_sample_is_prepared_as_early_as_the_first_task_that_waits_for_it_is_due() {
    for joins_while_reading in [true, false] {
        let mut stages = pool(1, 8, "", "x");
        let now = Instant::now();
        assert_eq!(begun(&mut stages), "px ");
        stages.submit(now, Deadline::MAX, true, Some(SOURCE), 'A');
        assert_eq!(begun(&mut stages), "fA ");
        stages.submit(now, Deadline::at(5.0), false, None, 'y');
        let join = |stages: &mut StageQueues<char>| {
            stages.submit(now, Deadline::at(1.0), true, Some(SOURCE), 'B');
            assert_eq!(begun(stages), "");
        };
        if joins_while_reading {
            join(&mut stages);
        }
        let done = CompletedTask::Fetched(
            'A',
            Ready {
                due: Deadline::MAX,
                ..ready(0.0)
            },
        );
        stages.done(now, 1, done);
        if !joins_while_reading {
            join(&mut stages);
        }
        done_preparing(&mut stages, 0);
        assert_eq!(begun(&mut stages), "pA ");
        done_preparing(&mut stages, 0);
        assert_eq!(begun(&mut stages), "pB ");
    }
}

#[test]
fn nobody_waits_for_a_read_that_is_stuck() {
    let mut stages = pool(2, 2, "12", "");
    let now = Instant::now();
    assert_eq!(begun_at(&mut stages, now), "f1 ");
    maintain(&mut stages, now + STUCK, false);
    assert_eq!(begun_at(&mut stages, now + STUCK), "f2 ");
}

/// Lets a thread begin reads that need no thread, as many as there are. Returns their numbers.
fn detach_all(stages: &mut StageQueues<char>, now: Instant) -> Vec<usize> {
    let mut numbers = Vec::new();
    while stages.may_fetch() && stages.is_errand_first() {
        let Some(ThreadTask::BeginFetch(name)) = stages.next(now, 0) else {
            break;
        };
        numbers.extend(stages.detach(0, name));
        stages.done(now, 0, CompletedTask::Begun);
    }
    numbers
}

fn arrive(stages: &mut StageQueues<char>, number: usize) {
    let bytes = ReadBytes {
        bytes: vec![0],
        took: Duration::ZERO,
    };
    stages.arrived(number, Some(bytes));
}

#[test]
fn reads_without_threads_are_begun_first_and_are_as_many_as_threads() {
    let mut stages = pool(1, 3, "αβγδ", "xy");
    let reads = detach_all(&mut stages, Instant::now());
    assert_eq!((reads.len(), stages.now().fetching), (3, 3));
    assert_eq!(begun(&mut stages), "px ");
    arrive(&mut stages, reads[1]);
    // The processor is busy, and the thread that prepares goes on with this read when it has done.
    assert!(!stages.wants_thread(0) && stages.has_step());
    prepared(&mut stages);
    assert!(stages.wants_thread(0));
    assert_eq!(begin(&mut stages, Instant::now()), Some((0, "aβ ".into())));
    assert!(!stages.wants_thread(0), "its thread is free soon");
    fetched(&mut stages, 'β', 0.0);
    assert_eq!(begin(&mut stages, Instant::now()), Some((0, "bδ ".into())));
    stages.detach(0, 'δ');
    assert!(!stages.wants_thread(0), "its thread begins the read");
    stages.done(Instant::now(), 0, CompletedTask::Begun);
    assert_eq!(begun(&mut stages), "pβ ");
    let now = stages.now();
    assert_eq!((now.fetching, now.preparing, stages.errands), (3, 1, 0));
}

#[test]
fn a_thread_is_woken_for_many_reads_although_processors_are_busy() {
    let names: String = ('α'..='ω').collect();
    let mut stages = pool(1, 26, &names, "x");
    let reads = detach_all(&mut stages, Instant::now());
    assert_eq!(begun(&mut stages), "px ");
    let (last, others) = reads[..16].split_last().expect("16 reads");
    others.iter().for_each(|&read| arrive(&mut stages, read));
    assert!(!stages.wants_thread(0));
    arrive(&mut stages, *last);
    assert!(stages.wants_thread(0));
    assert!(
        !stages.wants_thread(1),
        "the thread that is woken does them all"
    );
    assert_eq!(begun(&mut stages).matches('a').count(), 16);
}

#[test]
fn a_thread_that_reads_after_all_keeps_no_other_from_preparing() {
    let mut stages = pool(1, 3, "α", "");
    assert_eq!(begun(&mut stages), "bα ");
    stages.submit(Instant::now(), Deadline::default(), false, None, 'x');
    assert!(!stages.wants_thread(0));
    stages.reads_itself(0);
    assert!(stages.wants_thread(0));
    assert_eq!(begun(&mut stages), "px ");
    fetched(&mut stages, 'α', 0.0);
    assert_eq!(stages.errands, 0);
}

#[test]
fn a_read_without_a_thread_that_is_stuck_is_set_apart() {
    let now = Instant::now();
    let mut stages = pool(2, 2, "αβ", "");
    stages.expect_detached();
    let reads = detach_all(&mut stages, now);
    stages.submit(now, Deadline::at(99.0), true, Some(OTHER), 'x');
    assert_eq!(begun_at(&mut stages, now), "", "both reads count");
    assert!(stages.longest_read(SOURCE.source, |_| false).is_some());
    maintain(&mut stages, now + STUCK, false);
    assert_eq!((stages.now().apart, stages.now().fetching), (2, 0));
    // They have no threads that would have to be replaced.
    assert_eq!(stages.wanted_threads(), 2);
    assert_eq!(begun_at(&mut stages, now + STUCK), "fx ");
    for read in reads {
        stages.arrived(read, None);
    }
    // Nothing was read. The samples wait for threads beyond those of the pool, as all of their source.
    stages.submit(now, Deadline::at(99.5), true, Some(OTHER), 'y');
    assert_eq!(begun_at(&mut stages, now + STUCK), "fy ");
    assert_eq!((stages.now().apart, stages.now().to_fetch), (0, 2));
    maintain(&mut stages, now + STUCK, false);
    assert_eq!(begun_at(&mut stages, now + STUCK), "fα ");
    fetched_by(&mut stages, now + STUCK, 2, ready(0.0));
    maintain(&mut stages, now + STUCK, false);
    // The threads of the pool are at other reads.
    assert_eq!(begun_at(&mut stages, now + STUCK), "fβ ");
    let counts = stages.now();
    assert_eq!((counts.apart, counts.fetching, stages.errands), (1, 2, 0));
}

#[test]
fn samples_whose_reads_failed_wait_for_threads_in_the_order_in_which_they_are_due() {
    let mut stages = pool(2, 2, "αβ", "");
    let now = Instant::now();
    let reads = detach_all(&mut stages, now);
    stages.submit(now, Deadline::at(0.5), true, Some(OTHER), 'x');
    for read in reads {
        stages.arrived(read, None);
    }
    assert_eq!(begun_at(&mut stages, now), "fα fx ");
    fetched(&mut stages, 'α', 0.0);
    assert_eq!(begun_at(&mut stages, now), "pα ");
    done_preparing(&mut stages, 0);
    assert_eq!(begun_at(&mut stages, now), "fβ ");
    assert_eq!((stages.now().fetching, stages.incoming), (2, 2));
}

#[test]
fn where_reads_need_no_threads_few_are_started_and_more_once_they_wait() {
    let names = "a".repeat(400);
    let mut stages = pool(2, 300, &names, "");
    assert_eq!(stages.wanted_threads(), 300);
    stages.expect_detached();
    let mut wanted = Vec::new();
    for thread in 0..300 {
        wanted.push(stages.wanted_threads());
        stages.next(Instant::now(), thread);
    }
    assert!(wanted[0] < 40 && wanted.is_sorted());
    assert!(
        wanted
            .iter()
            .enumerate()
            .all(|(threads, &wanted)| wanted > threads as u32)
    );
    assert_eq!(wanted.last(), Some(&300));
}
