use coprep_protocol::message::{GpuStatus, OutageStatus};
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;

use super::*;
use crate::model::fixtures::{a_cache, a_job, a_stream, two_statuses};
use crate::screen::tests::{a_screen, press};
use crate::theme::tests::{ASCII, UTF8};

fn drawn(screen: &Screen, theme: &Theme, width: u16, height: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    terminal.draw(|frame| draw(frame, screen, theme)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| {
        (0..width)
            .map(|x| buffer[(x, y)].symbol())
            .collect::<String>()
    };
    (0..height).map(line).collect()
}

fn contains(lines: &[String], text: &str) -> bool {
    lines.iter().any(|line| line.contains(text))
}

/// Returns the line that starts with this text after the marker.
fn row<'a>(lines: &'a [String], start: &str) -> &'a str {
    let found = lines.iter().find(|line| line[1..].starts_with(start));
    found.unwrap_or_else(|| panic!("no {start} in\n{}", lines.join("\n")))
}

/// Returns the screen of a busy coordinator: two streams, many jobs.
fn busy() -> Screen {
    let (mut before, _) = two_statuses();
    before.caches = vec![a_cache(), a_cache()];
    before.streams = vec![
        a_stream(1, (1..=20).map(a_job).collect()),
        a_stream(2, vec![a_job(1)]),
    ];
    let mut now = before.clone();
    now.uptime_s += 1.0;
    now.pool.fetch_s += 3.0;
    now.pool.prepare_s += 2.0;
    for job in &mut now.streams[0].jobs {
        job.delivered += 100 * job.id;
        job.stalls.fetch_s += 0.25;
        job.stalls.prep_s += 0.125;
    }
    now.streams[0].totals.prepared += 2000;
    now.streams[0].totals.delivered += 21_000;
    let mut screen = Screen::default();
    screen.update(before);
    screen.update(now);
    screen
}

#[test]
fn at_80_by_24_there_is_something_of_everything() {
    let lines = drawn(&a_screen(), &UTF8, 80, 24);
    assert!(contains(
        &lines,
        "coordinator 4711, up 1 min 42 s, memory 412.0 MiB, 2 CPUs, 8 threads"
    ));
    assert!(
        contains(&lines, "fetching ██████·········· 3/8 +40 0/s  preparing █"),
        "{lines:#?}"
    );
    assert!(contains(&lines, "3/8 +40") && contains(&lines, "2/2 +5"));
    assert!(row(&lines, "/data/train").contains("░░░░▒▒▒▒▒▒▒▒····  75%"));
    assert!(row(&lines, "1 /data/train").contains("3.90 12/14"));
    assert!(contains(&lines, "decode > random_resized_crop 224"));
    for job in ["train_1.py", "train_2.py"] {
        let cells: Vec<_> = row(&lines, job).split_whitespace().collect();
        assert!(cells.contains(&"40%") && cells.contains(&"0%"), "{cells:?}");
    }
    assert!(
        contains(&lines, "SLOW") && contains(&lines, "name_00001.jpg"),
        "{lines:#?}"
    );
    assert!(lines[23].contains("q quit, h help, s sort: stream"));
}

#[test]
fn at_120_by_40_nothing_is_left_out_and_nothing_is_shortened() {
    let lines = drawn(&a_screen(), &UTF8, 120, 40);
    let head = row(&lines, "JOBS 3");
    for word in [
        "pid", "strm", "smp/s", "bat/s", "wait", "lag", "que", "held", "idle", "skip",
    ] {
        assert!(head.contains(word), "{word} in {head}");
    }
    assert_eq!(
        lines
            .iter()
            .filter(|line| line[1..].starts_with("train_"))
            .count(),
        3
    );
    assert!(contains(
        &lines,
        "waited 0% of 10s: fetch 0% prep 0% others 0%"
    ));
    assert!(contains(
        &lines,
        "/data/train/class8/a_picture_with_a_long_name_00008.jpg"
    ));
    assert!(contains(&lines, "1,000 measured") && contains(&lines, "slow over 5.1 ms"));
    assert!(!contains(&lines, "…"));
}

#[test]
fn at_40_by_10_the_jobs_remain_with_their_rates() {
    let lines = drawn(&busy(), &UTF8, 40, 10);
    assert!(lines[0].contains("coordinator 4711"));
    assert!(
        lines[1].contains("3/8 +40") && lines[1].contains("2/2 +5"),
        "{lines:#?}"
    );
    assert!(contains(&lines, "JOBS 1-"), "{lines:#?}");
    let first = row(&lines, "train_1.py");
    // The rate, and the share of time spent waiting.
    assert!(first.contains(" 100 ") && first.contains("38%"), "{first}");
    assert!(lines[9].contains("q quit, h help"));
    // Other tables appear when they are focused.
    let mut screen = busy();
    press(&mut screen, [KeyCode::Tab, KeyCode::Tab]);
    assert!(contains(&drawn(&screen, &UTF8, 40, 10), "SLOW 1-"));
}

#[test]
fn of_many_jobs_the_selected_one_is_shown_with_notes() {
    let mut screen = busy();
    press(&mut screen, [KeyCode::Down; 19]);
    let lines = drawn(&screen, &UTF8, 80, 24);
    assert!(
        contains(&lines, "/21") && contains(&lines, ">train_20.py"),
        "{lines:#?}"
    );
    assert!(contains(
        &lines,
        "train_20.py (4020), waited 4% of 10s: fetch 2% prep 1%"
    ));
}

#[test]
fn waits_shares_and_rates_are_in_their_columns() {
    let lines = drawn(&busy(), &UTF8, 120, 60);
    let words = |line: &str| -> Vec<String> { line.split_whitespace().map(Into::into).collect() };
    let (head, job) = (
        words(row(&lines, "JOBS 21")),
        words(row(&lines, "train_7.py")),
    );
    // The title has two words, the name one.
    let of = |name: &str| {
        job[head
            .iter()
            .position(|h| h.trim_end_matches('▲') == name)
            .unwrap()
            - 1]
        .as_str()
    };
    assert_eq!(
        [of("smp/s"), of("wait"), of("fetch"), of("prep"), of("othr")],
        ["700", "38%", "25%", "12%", "0%"]
    );
    assert_eq!(
        [of("pid"), of("strm"), of("ep"), of("done"), of("held")],
        ["4007", "1", "2", "40%", "2"]
    );
    let stream = row(&lines, "1 /data/train");
    assert!(
        stream.contains("2000") && stream.contains("21.0k") && stream.contains("10.50"),
        "{stream}"
    );
}

#[test]
fn lag_and_holder_are_named() {
    let (before, mut now) = two_statuses();
    now.streams[0].jobs[1].held = 6;
    now.streams[0].jobs[1].need = 100;
    now.streams[0].differs = vec!["stream 2: dataset.root".into()];
    now.streams[0].totals.failed = 3;
    let mut screen = Screen::default();
    screen.update(before);
    screen.update(now);
    let lines = drawn(&screen, &UTF8, 120, 40);
    assert!(
        contains(&lines, "500 behind train_2.py (4002) (+250/s)"),
        "{lines:#?}"
    );
    assert!(contains(&lines, "most held by train_2.py (4002): 6"));
    assert!(
        contains(&lines, "not shared with stream 2: dataset.root") && contains(&lines, "3 failed")
    );
}

#[test]
fn the_sort_column_is_marked_and_the_foot_names_it() {
    let mut screen = a_screen();
    press(&mut screen, [KeyCode::Char('s'); 3]);
    let lines = drawn(&screen, &UTF8, 80, 24);
    assert!(row(&lines, "JOBS").contains("smp/s▼") && lines[23].contains("s sort: rate"));
    press(&mut screen, [KeyCode::Char('r')]);
    let lines = drawn(&screen, &ASCII, 80, 24);
    assert!(row(&lines, "JOBS").contains("smp/s^") && lines[23].contains("rate, reversed"));
}

#[test]
fn the_sort_column_stays_where_others_go() {
    let mut screen = a_screen();
    let shows_idle = |screen: &Screen| row(&drawn(screen, &UTF8, 44, 10), "JOBS").contains("idle");
    assert!(!shows_idle(&screen));
    press(&mut screen, [KeyCode::Char('s'); 7]);
    assert!(shows_idle(&screen));
}

#[test]
fn a_coordinator_that_has_ended_is_waited_for() {
    let mut screen = a_screen();
    screen.connection = ConnectionState::Ended;
    let lines = drawn(&screen, &UTF8, 80, 24);
    assert!(lines[1].contains("coordinator has ended, waiting for it to come back"));
    assert!(contains(&lines, "train_1.py"), "what was last seen stays");
    assert!(drawn(&screen, &UTF8, 40, 10)[1].contains("coordinator has ended, waiting"));
    screen.connection = ConnectionState::Late(7);
    assert!(drawn(&screen, &UTF8, 80, 24)[1].contains("has not answered for 7 s"));
    screen.update(two_statuses().1);
    assert!(drawn(&screen, &UTF8, 80, 24)[1].contains("fetching"));
}

#[test]
fn without_utf8_everything_is_ascii() {
    let mut screen = busy();
    screen.report.jobs[0].status.name = "größe.py\u{1b}[2J".into();
    for (width, height) in [(80, 24), (120, 40), (40, 10)] {
        let lines = drawn(&screen, &ASCII, width, height);
        assert!(lines.iter().all(|line| line.is_ascii()), "{lines:#?}");
    }
    assert!(contains(
        &drawn(&screen, &ASCII, 120, 60),
        "eeeedddddddd...."
    ));
}

#[test]
fn no_size_is_too_small_or_too_large_to_draw() {
    let mut screens = [a_screen(), busy(), Screen::default(), busy()];
    screens[3].help = Some(1000);
    for screen in &screens {
        for (width, height) in (1..60).flat_map(|w| (1..40).step_by(3).map(move |h| (w, h))) {
            assert_eq!(
                drawn(screen, &UTF8, width, height).len(),
                usize::from(height)
            );
        }
        drawn(screen, &ASCII, 400, 200);
    }
    assert!(drawn(&screens[0], &UTF8, 35, 30)[0].starts_with("coprep top needs 36x6"));
    assert!(drawn(&screens[0], &UTF8, 36, 6)[0].contains("coordinator 4711"));
}

#[test]
fn no_line_is_wider_than_the_terminal() {
    for screen in [a_screen(), busy()] {
        for width in usize::from(LEAST.0)..140 {
            for line in whole(&screen, &UTF8, width, 50) {
                assert!(line.width() <= width, "{line} at {width}");
            }
        }
    }
}

#[test]
fn lines_are_shared_out_to_whom_keys_act_on_and_never_more_than_there_are() {
    assert_eq!(share([3, 4, 7, 10], Pane::Jobs, 24), [3, 4, 7, 10]);
    assert_eq!(share([3, 4, 7, 10], Pane::Jobs, 15), [2, 4, 7, 2]);
    assert_eq!(share([3, 4, 7, 10], Pane::Slow, 15), [0, 2, 3, 10]);
    assert_eq!(share([3, 4, 7, 10], Pane::Streams, 6), [0, 4, 2, 0]);
    for room in 0..40 {
        assert!(
            share([3, 4, 40, 10], Pane::Caches, room)
                .iter()
                .sum::<usize>()
                <= room
        );
    }
}

#[test]
fn the_help_explains_every_column_and_fits_80_by_24() {
    let columns = JOBS
        .iter()
        .map(|c| c.head)
        .chain(STREAMS.iter().map(|c| c.head));
    let plain = [
        "name", "pid", "strm", "fetch", "prep", "othr", "dataset", "samples", "jobs", "pipeline",
        "in all",
    ];
    for head in columns.filter(|head| !plain.contains(head)) {
        assert!(HELP.contains(head), "{head}");
    }
    assert!(HELP.lines().count() < 24 && HELP.lines().all(|line| line.len() < 80));
    let mut screen = a_screen();
    press(&mut screen, [KeyCode::Char('h')]);
    let lines = drawn(&screen, &UTF8, 80, 24);
    assert!(lines[0].contains("q, Esc, Ctrl-C: quit") && lines[23].contains("any other key"));
    press(&mut screen, [KeyCode::Down; 4]);
    assert!(drawn(&screen, &UTF8, 40, 10)[0].contains("preparing"));
}

#[test]
fn one_look_in_plain_text_has_everything() {
    let text = text(&busy(), &ASCII);
    for part in [
        "coordinator 4711, up 1 min 41 s",
        "preparing",
        "CACHES 2",
        "STREAMS 2",
        "train_20.py",
        "all:wait",
    ] {
        assert!(text.contains(part), "{part} in\n{text}");
    }
    assert!(!text.lines().any(|line| line.starts_with('>')));
    assert!(text.contains("SLOW 8") && text.contains("a_picture_with_a_long_name_00008.jpg"));
}

#[test]
fn a_seed_that_nobody_chose_is_left_out() {
    let (mut before, mut now) = two_statuses();
    for status in [&mut before, &mut now] {
        status.streams[0].seed = 6_917_529_027_641_081_856;
    }
    let mut screen = Screen::default();
    screen.update(before);
    screen.update(now);
    let lines = drawn(&screen, &UTF8, 112, 31);
    assert!(contains(&lines, "deterministic order") && !contains(&lines, "seed"));
    assert!(contains(
        &drawn(&a_screen(), &UTF8, 112, 31),
        "order, seed 7"
    ));
}

#[test]
fn each_gpu_has_a_line_with_its_uploads() {
    let gpu = |shared_uploads, wait_s| GpuStatus {
        uuid: "GPU-fafafafa-1111-2222-3333-444444444444".into(),
        consumers: 4,
        sharing: 3,
        shared_uploads,
        shared_bytes: shared_uploads << 20,
        wait_s,
        ..GpuStatus::default()
    };
    let (mut before, _) = two_statuses();
    before.gpus = vec![gpu(100, 1.0)];
    let mut now = before.clone();
    now.uptime_s += 2.0;
    now.gpus = vec![gpu(120, 3.0)];
    let mut screen = Screen::default();
    screen.update(before);
    screen.update(now);
    let lines = drawn(&screen, &UTF8, 100, 24);
    let expected =
        "GPU-fafafafa, shared uploads 10.0/s, own 0/s, 10.0 MiB/s, waits 25%, 3 of 4 share";
    assert_eq!(row(&lines, expected).trim(), expected);
}

#[test]
fn a_store_that_is_out_has_a_line_whichever_stream_is_selected() {
    let (mut status, _) = two_statuses();
    status.outages = vec![OutageStatus {
        store: "s3://bucket".into(),
        lasts_s: 42.0,
        last_answer: "503 Service Unavailable (SlowDown)".into(),
        next_try_s: 7.0,
        waiting: 12,
        patience_s: 600.0,
    }];
    let mut screen = Screen::default();
    screen.update(status);
    let expected =
        "s3://bucket has not answered for 42 s (503 Service Unavailable (SlowDown)), 12 reads wait";
    let lines = drawn(&screen, &UTF8, 110, 24);
    assert!(row(&lines, expected).trim().ends_with("next try in 7 s"));
    assert!(super::text(&screen, &UTF8).contains(expected));
}
