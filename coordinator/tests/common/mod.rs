//! Helpers that the tests of this crate share: a coordinator in a thread, requests and readers of batches.
#![allow(dead_code, reason = "each test uses some of them")]

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use coprep_client::loader::LoaderOptions;
use coprep_client::{Batch, Loader, control, no_interrupt, no_notice};
use coprep_coordinator::{Server, Settings, StopReason};
use coprep_protocol::message::{Attach, CacheRequest, StreamStatus};
use coprep_protocol::paths::CoordinatorPaths;
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, Interpolation, Op, PipelineSpec, Source, UserDataset, WorkingDirectory,
};
use coprep_protocol::store_variables::StoreVariables;

/// Longest time that a test waits for anything.
pub(crate) const LIMIT: Duration = Duration::from_secs(60);

/// A coordinator in a thread.
pub(crate) struct Node {
    pub(crate) folder: tempfile::TempDir,
    settings: Settings,
    server: Option<JoinHandle<StopReason>>,
}

impl Node {
    pub(crate) fn start() -> Node {
        Node::start_with(Settings {
            staging_bytes: 8 << 20,
            ..Settings::default()
        })
    }

    /// Starts a coordinator with other settings, except for processors and idleness.
    pub(crate) fn start_with(settings: Settings) -> Node {
        let mut node = Node {
            folder: tempfile::tempdir().unwrap(),
            settings: Settings {
                cpus: Some(2),
                idle: None,
                ..settings
            },
            server: None,
        };
        node.begin();
        node
    }

    /// Starts a coordinator again at the address of the one that has ended.
    pub(crate) fn begin(&mut self) {
        let server = Server::bind(self.paths(), self.settings.clone()).unwrap();
        self.server = Some(std::thread::spawn(move || server.run().unwrap()));
    }

    /// Ends the coordinator. Its jobs lose their connections.
    pub(crate) fn end(&mut self) {
        control::stop(&self.paths()).unwrap();
        let server = self.server.take().unwrap();
        assert_eq!(server.join().unwrap(), StopReason::Asked);
    }

    pub(crate) fn paths(&self) -> CoordinatorPaths {
        CoordinatorPaths::at(self.folder.path().join("run/coordinator.sock"))
    }

    /// Returns a loader that reconnects and starts no coordinator.
    pub(crate) fn loader(&self, attach: Attach) -> Arc<Loader> {
        self.loader_within(LIMIT, attach)
    }

    /// Returns a loader that waits for a batch for `timeout`.
    pub(crate) fn loader_within(&self, timeout: Duration, attach: Attach) -> Arc<Loader> {
        let options = LoaderOptions {
            paths: self.paths(),
            name: "test".into(),
            program: Some("/bin/false".into()),
            attach,
            device: None,
            code: None,
            credentials: None,
            timeout,
            reconnect: LIMIT,
            interrupt_check: no_interrupt(),
            notice: no_notice(),
        };
        Loader::new(options).unwrap()
    }

    pub(crate) fn streams(&self) -> Vec<StreamStatus> {
        control::status(&self.paths(), 0).unwrap().streams
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if self.server.is_some() && !std::thread::panicking() {
            self.end();
        }
    }
}

/// Returns a pipeline of ids and visits only, whose jobs make the samples themselves.
pub(crate) fn numbers(samples: u32) -> PipelineSpec {
    PipelineSpec {
        source: Source::UserCode(UserDataset {
            name: "Numbers".into(),
            samples: Some(samples),
            dataset: Vec::new(),
            rest: Vec::new(),
            split: false,
            in_job: true,
            is_iterated: false,
            directory: WorkingDirectory::default(),
        }),
        ops: Vec::new(),
    }
}

/// Returns the ids of a batch.
#[expect(unsafe_code, reason = "an array of a batch is known by its address")]
pub(crate) fn ids(batch: &Batch) -> Vec<u32> {
    let arrays = batch.arrays();
    let index = arrays.iter().find(|array| array.name == "index").unwrap();
    let first = index.address() as *const i64;
    // SAFETY: the array has `shape[0]` elements of this type, and lives until the end of this function.
    let values = (0..index.shape[0]).map(|i| unsafe { first.add(i).read_unaligned() });
    values.map(|id| u32::try_from(id).unwrap()).collect()
}

/// Returns the request of a job of one rank that shuffles with seed 7 and names nothing else.
pub(crate) fn attach(pipeline: PipelineSpec, batch_size: u32) -> Attach {
    Attach {
        store_variables: StoreVariables::default(),
        provider: None,
        code: None,
        pipeline,
        seed: Some(7),
        seed_hint: None,
        draws: None,
        is_told: false,
        knows_order_of: None,
        shuffle: true,
        shuffle_window: 0,
        relaxed: false,
        cache: CacheRequest::default(),
        batch_size,
        drop_last: false,
        rank: 0,
        world_size: 1,
        group: String::new(),
        subset: None,
        resume: None,
        dataset_samples: None,
        cohort: None,
        skip_errors: false,
        tokens: Vec::new(),
        told: None,
        departed: Vec::new(),
        has_begun: false,
    }
}

/// Writes a folder of small images. Returns the pipeline that crops them at random.
pub(crate) fn images(root: &Path, samples: u32) -> PipelineSpec {
    std::fs::create_dir_all(root.join("class")).unwrap();
    for i in 0..samples {
        let grey = image::RgbImage::from_pixel(20, 30, image::Rgb([i as u8; 3]));
        grey.save(root.join(format!("class/{i:03}.png"))).unwrap();
    }
    crops(root)
}

/// Returns a pipeline that decodes the images of a folder and crops them at random.
pub(crate) fn crops(root: &Path) -> PipelineSpec {
    let decode = Op::Decode {
        apply_exif_orientation: false,
        max_pixels: DEFAULT_MAX_PIXELS,
        scaled: true,
    };
    let crop = Op::RandomResizedCrop {
        height: 8,
        width: 8,
        scale: (0.08, 1.0),
        ratio: (0.75, 1.333),
        interpolation: Interpolation::Bilinear,
    };
    PipelineSpec {
        source: Source::ImageFolder {
            root: root.to_str().unwrap().into(),
        },
        ops: vec![decode, crop],
    }
}
