//! A job's epoch through a real socket and real shared memory, without the client library.
#![expect(clippy::unwrap_used, reason = "a test ends at the first error")]

use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use coprep_coordinator::{Server, Settings, StopReason};
use coprep_protocol::frame;
use coprep_protocol::message::{
    Attach, Attached, CacheForm, CacheRequest, RefusalKind, Reply, Request,
};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::{DEFAULT_MAX_PIXELS, Field, Interpolation, Op, PipelineSpec, Source};
use coprep_shared_memory::handover::{ItemKind, Receiver};
use coprep_shared_memory::staging::Layout;
use coprep_shared_memory::view::StagingView;

mod common;

const SAMPLES: u32 = 50;

/// A coordinator in a thread, over a folder of grey images whose brightness is their number.
struct Node {
    folder: tempfile::TempDir,
    server: Option<std::thread::JoinHandle<StopReason>>,
}

impl Node {
    fn start() -> Node {
        let folder = tempfile::tempdir().unwrap();
        for i in 0..SAMPLES {
            let class = folder.path().join(format!("photos/class{}", i / 25));
            std::fs::create_dir_all(&class).unwrap();
            let grey = image::RgbImage::from_pixel(20 + i, 30, image::Rgb([i as u8; 3]));
            grey.save(class.join(format!("{i:03}.png"))).unwrap();
        }
        let settings = Settings {
            cpus: Some(2),
            cache_budget: 16 << 20,
            staging_bytes: 8 << 20,
            ..Settings::default()
        };
        let server = Server::bind(paths(folder.path()), settings).unwrap();
        let server = std::thread::spawn(move || server.run().unwrap());
        Node {
            folder,
            server: Some(server),
        }
    }

    fn connect(&self) -> UnixStream {
        let socket = UnixStream::connect(&paths(self.folder.path()).socket).unwrap();
        socket
            .set_read_timeout(Some(Duration::from_secs(30)))
            .unwrap();
        let reply = ask(
            &socket,
            &Request::Hello {
                name: "test".into(),
                pid: std::process::id(),
            },
        );
        assert!(matches!(reply, Reply::Welcome { .. }));
        socket
    }

    fn attach(&self, change: impl FnOnce(&mut Attach)) -> Attach {
        let root = self
            .folder
            .path()
            .join("photos")
            .to_str()
            .unwrap()
            .to_owned();
        let pipeline = PipelineSpec {
            source: Source::ImageFolder { root },
            ops: ops(),
        };
        let mut attach = common::attach(pipeline, 8);
        change(&mut attach);
        attach
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        let reply = ask(&self.connect(), &Request::Stop);
        assert_eq!(reply, Reply::Stopping);
        assert_eq!(
            self.server.take().unwrap().join().unwrap(),
            StopReason::Asked
        );
        assert!(!paths(self.folder.path()).socket.exists());
    }
}

fn paths(folder: &Path) -> CoordinatorPaths {
    CoordinatorPaths::at(folder.join("run/coordinator.sock"))
}

fn ops() -> Vec<Op> {
    let (interpolation, scale, ratio) = (Interpolation::Bilinear, (0.08, 1.0), (0.75, 1.333));
    vec![
        Op::Decode {
            apply_exif_orientation: false,
            max_pixels: DEFAULT_MAX_PIXELS,
            scaled: true,
        },
        Op::RandomResizedCrop {
            height: 8,
            width: 8,
            scale,
            ratio,
            interpolation,
        },
    ]
}

fn ask(socket: &UnixStream, request: &Request) -> Reply {
    frame::send(socket, request, &[]).unwrap();
    frame::receive::<Reply>(socket).unwrap().0
}

/// A minimal consumer, without the client library.
struct Consumer {
    _socket: UnixStream,
    attached: Attached,
    receiver: Receiver,
    view: StagingView,
}

impl Consumer {
    fn new(node: &Node, attach: Attach) -> Consumer {
        let socket = node.connect();
        frame::send(&socket, &Request::Attach(Box::new(attach)), &[]).unwrap();
        let (reply, fds) = frame::receive::<Reply>(&socket).unwrap();
        let Reply::Attached(attached) = reply else {
            panic!("{reply:?}")
        };
        let [staging, deliver, back, doorbell] = fds.try_into().unwrap();
        let sizes: Vec<usize> = attached.fields.iter().map(Field::sample_bytes).collect();
        let layout = Layout::new(&sizes, attached.slots, attached.buffers).unwrap();
        let view = StagingView::open(staging, layout).unwrap();
        let receiver = Receiver::open(deliver, back, doorbell).unwrap();
        Consumer {
            _socket: socket,
            attached: *attached,
            receiver,
            view,
        }
    }

    /// Takes one epoch. Returns (id, label, first pixel) of every sample.
    fn epoch(&self) -> Vec<(i64, i64, u8)> {
        let mut seen = Vec::new();
        loop {
            let Some((seq, item)) = self.receiver.try_next().unwrap() else {
                self.receiver.wait(Duration::from_secs(5));
                continue;
            };
            if item.kind() == Some(ItemKind::Part) {
                seen.extend(
                    (item.start..item.start + item.len).map(|slot| self.sample(item.buffer, slot)),
                );
            }
            self.receiver.release(seq).unwrap();
            if item.kind() == Some(ItemKind::EpochEnd) {
                frame::send(
                    &self._socket,
                    &Request::EpochStarted {
                        epoch: item.epoch + 1,
                    },
                    &[],
                )
                .unwrap();
                return seen;
            }
        }
    }

    fn sample(&self, buffer: u32, slot: u32) -> (i64, i64, u8) {
        let at = |field: usize| {
            let bytes = self.view.layout().sample_bytes(field);
            // SAFETY: within the field of a buffer that was taken and not yet released.
            #[expect(unsafe_code, reason = "the view gives pointers")]
            unsafe {
                std::slice::from_raw_parts(
                    self.view
                        .field(buffer, field)
                        .as_ptr()
                        .add(bytes * slot as usize),
                    bytes,
                )
            }
        };
        let number = |field| i64::from_ne_bytes(at(field).try_into().unwrap());
        (number(2), number(1), at(0)[0])
    }
}

#[test]
fn an_epoch_has_each_sample_once_with_its_own_pixels_and_label() {
    let node = Node::start();
    for form in [CacheForm::Off, CacheForm::Encoded, CacheForm::Decoded] {
        let consumer = Consumer::new(&node, node.attach(|a| a.cache.form = Some(form)));
        assert_eq!(consumer.attached.job_samples, SAMPLES);
        for _ in 0..3 {
            let mut seen = consumer.epoch();
            seen.sort_unstable();
            let expected: Vec<_> = (0..i64::from(SAMPLES))
                .map(|i| (i, i / 25, i as u8))
                .collect();
            assert_eq!(seen, expected, "{form:?}");
        }
    }
}

#[test]
fn two_jobs_share_what_is_prepared() {
    let node = Node::start();
    let jobs = [(); 2].map(|()| Consumer::new(&node, node.attach(|a| a.batch_size = 5)));
    std::thread::scope(|s| {
        for job in &jobs {
            s.spawn(move || (0..4).for_each(|_| assert_eq!(job.epoch().len(), SAMPLES as usize)));
        }
    });
    let Reply::Status(status) = ask(&node.connect(), &Request::Status { slow: 0 }) else {
        panic!()
    };
    let totals = &status.streams[0].totals;
    assert_eq!(status.streams.len(), 1);
    assert!(totals.prepared < totals.delivered, "{totals:?}");
}

#[test]
fn a_refusal_says_what_and_why() {
    let node = Node::start();
    let refused = |change: &dyn Fn(&mut Attach)| {
        let reply = ask(
            &node.connect(),
            &Request::Attach(Box::new(node.attach(|a| change(a)))),
        );
        let Reply::Refused(refusal) = reply else {
            panic!("{reply:?}")
        };
        refusal
    };
    let nowhere = |a: &mut Attach| {
        a.pipeline.source = Source::ImageFolder {
            root: "/nowhere".into(),
        }
    };
    assert_eq!(refused(&nowhere).kind, RefusalKind::NotFound);
    assert!(refused(&nowhere).message.contains("/nowhere"));
    assert!(
        refused(&|a| a.batch_size = 0)
            .message
            .contains("batch_size")
    );
    assert!(refused(&|a| a.rank = 3).message.contains("rank 3"));
    let huge = |a: &mut Attach| {
        a.cache = CacheRequest {
            form: Some(CacheForm::Off),
            bytes: Some(1),
            lru: false,
            reuse: 0,
            check_files: true,
        }
    };
    assert!(refused(&huge).message.contains("cache_bytes"));
    let Reply::Status(status) = ask(&node.connect(), &Request::Status { slow: 0 }) else {
        panic!()
    };
    assert!(
        status.streams.is_empty(),
        "what was refused leaves nothing behind"
    );
}
