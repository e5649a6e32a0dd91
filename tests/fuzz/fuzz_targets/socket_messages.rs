//! Fuzzes the parsing of messages from an unknown peer, in either direction.
//!
//! The bytes must be refused or understood, without a panic. A message that is understood must be the same after it is
//! sent again, and the same from the socket as from memory.
#![no_main]

use std::fmt::Debug;
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;

use coprep_protocol::dataset_url::UrlScheme;
use coprep_protocol::frame::{Message, parse, receive, to_bytes};
use coprep_protocol::given_credentials::{StoreCredentials, TimedCredentials};
use coprep_protocol::message::{
    Attach, Attached, CacheForm, CacheRequest, CarriedOver, CohortRequest, Departure, DrawsRequest,
    GiveCredentials, Reply, Request, ResumePoint, UserCode,
};
use coprep_protocol::spec::{
    DEFAULT_MAX_PIXELS, Dtype, Field, FileList, Interpolation, Op, PipelineSpec, ResizeTo, Source,
};
use coprep_protocol::store_variables::StoreVariables;
use libfuzzer_sys::fuzz_target;

fuzz_target!(init: coprep_fuzz::seed(&seeds()), |data: &[u8]| {
    for frame in [data.to_vec(), framed(data)] {
        if let Some(request) = journey::<Request>(&frame) {
            identify(&request);
        }
        if let Some(Reply::Attached(attached)) = journey::<Reply>(&frame) {
            let _ = attached.fields.iter().map(Field::sample_bytes).max();
        }
    }
    // The report of a worker of user code.
    let _ = coprep_protocol::code::WorkerReport::parse(data);
});

/// Parses a frame, and checks that a message that is understood survives being sent again.
fn journey<M: Message + Debug>(frame: &[u8]) -> Option<M> {
    let parsed = parse::<M>(frame);
    assert_eq!(by_socket::<M>(frame).is_some(), parsed.is_ok());
    let message = parsed.ok()?;
    let bytes = to_bytes(&message).expect("what was parsed can be sent");
    let again: M = parse(&bytes).expect("what was sent can be parsed");
    // The texts are compared, since in them a NaN equals itself.
    assert_eq!(format!("{again:?}"), format!("{message:?}"));
    Some(message)
}

fn by_socket<M: Message>(frame: &[u8]) -> Option<M> {
    let (mut ours, theirs) = UnixStream::pair().expect("descriptors");
    ours.write_all(frame)
        .expect("an input fits the buffer of a socket");
    ours.shutdown(Shutdown::Write).expect("connected");
    let (message, descriptors) = receive(&theirs).ok()?;
    assert!(descriptors.is_empty());
    Some(message)
}

/// Computes the identities of a request, as the coordinator does before it looks at any file.
fn identify(request: &Request) {
    let pipeline = match request {
        Request::Attach(attach) => &attach.pipeline,
        Request::Describe(describe) => &describe.pipeline,
        Request::Warm(warm) => &warm.pipeline,
        _ => return,
    };
    assert_eq!(pipeline.fingerprint(), pipeline.clone().fingerprint());
    assert_ne!(pipeline.decoded_fingerprint(), 0);
    assert_ne!(pipeline.source.fingerprint(), 0);
}

/// Returns a frame whose header is right for this body.
fn framed(body: &[u8]) -> Vec<u8> {
    let mut frame = to_bytes(&Request::Status { slow: 0 }).expect("memory");
    frame.truncate(16);
    frame[8..12].copy_from_slice(&(body.len() as u32).to_le_bytes());
    frame.extend_from_slice(body);
    frame
}

fn seeds() -> Vec<Vec<u8>> {
    let requests = [
        Request::Status { slow: 3 },
        Request::Attach(Box::new(attach())),
        Request::Leave(departure()),
        Request::GiveCredentials(Box::new(credentials())),
    ];
    let replies = [
        Reply::Stopping,
        Reply::Attached(Box::new(attached())),
        Reply::Departed(departure()),
    ];
    let frames = requests
        .iter()
        .map(to_bytes)
        .chain(replies.iter().map(to_bytes));
    let frames = frames.map(|frame| frame.expect("memory"));
    frames
        .flat_map(|frame| [frame[16..].to_vec(), frame])
        .collect()
}

fn attach() -> Attach {
    let source = Source::Files(FileList {
        paths: vec!["/data/a.jpg".into(), "/b".into()],
        labels: vec![1, -2],
    });
    let (height, width, interpolation) = (224, 160, Interpolation::Bilinear);
    let ops = vec![
        Op::Decode {
            apply_exif_orientation: true,
            max_pixels: DEFAULT_MAX_PIXELS,
            scaled: true,
        },
        Op::Resize {
            to: ResizeTo::Exact { height, width },
            interpolation,
        },
        Op::CenterCrop { height, width },
        Op::RandomResizedCrop {
            height,
            width,
            scale: (0.08, 1.0),
            ratio: (0.75, 1.33),
            interpolation,
        },
        Op::RandomHorizontalFlip { p: 0.5 },
        Op::Normalize {
            mean: [0.5; 3],
            std: [0.2; 3],
        },
    ];
    Attach {
        pipeline: PipelineSpec { source, ops },
        store_variables: StoreVariables::from_iter([("AWS_REGION".into(), "here".into())]),
        provider: None,
        code: Some(UserCode {
            workers: 2,
            sample_timeout_ms: 1000,
            is_persistent: true,
            has_shadows: true,
        }),
        seed: Some(1),
        seed_hint: None,
        draws: Some(DrawsRequest {
            count: 7,
            weights: Some(vec![0.5, 0.0]),
        }),
        is_told: true,
        knows_order_of: Some(3),
        shuffle: true,
        shuffle_window: 0,
        relaxed: false,
        cache: CacheRequest {
            form: Some(CacheForm::Decoded),
            bytes: Some(1 << 30),
            lru: false,
            reuse: 2,
            check_files: true,
        },
        batch_size: 64,
        drop_last: false,
        rank: 1,
        world_size: 2,
        group: "ranks".into(),
        subset: Some(vec![1, 2, 3]),
        resume: Some(ResumePoint {
            epoch: 3,
            delivered: vec![4, 5],
            batches: 6,
            is_done: true,
            skipped: vec![1, 2],
            carried: vec![CarriedOver {
                epoch: 1,
                before: 2,
                ids: vec![3],
            }],
        }),
        dataset_samples: Some(1000),
        cohort: Some(CohortRequest {
            name: "study".into(),
            size: 4,
        }),
        skip_errors: true,
        tokens: vec![1 << 100, 7],
        told: Some(1 << 101),
        departed: vec![departure()],
        has_begun: true,
    }
}

fn attached() -> Attached {
    Attached {
        stream: 1,
        job: 2,
        seed: 3,
        dataset_samples: 1000,
        job_samples: 900,
        classes: vec!["cat".into(), "a longer name".into()],
        fields: vec![
            Field {
                name: "image".into(),
                dtype: Dtype::U8,
                shape: vec![3, 224, 224],
            },
            Field {
                name: "label".into(),
                dtype: Dtype::I64,
                shape: vec![],
            },
        ],
        slots: 64,
        buffers: 8,
        large_bytes: 1 << 20,
        epoch: 1,
        structure: vec![1, 2, 3],
        notes: vec!["a warmed cache".into()],
        unshared: vec!["another stream differs in a part".into()],
        left_out: Some("1 sample is left out".into()),
        token: 1 << 100,
    }
}

fn credentials() -> GiveCredentials {
    let credentials = StoreCredentials::Keys {
        key_id: "key".into(),
        secret_key: "not secret here".into(),
        token: Some("token".into()),
    };
    GiveCredentials {
        scheme: UrlScheme::S3,
        given: TimedCredentials {
            credentials,
            expires_ms: Some(1 << 41),
        },
    }
}

fn departure() -> Departure {
    Departure {
        token: 1 << 100,
        rank: 0,
        resume: ResumePoint {
            epoch: 3,
            delivered: vec![4, 5],
            batches: 7,
            is_done: true,
            skipped: vec![6],
            carried: vec![CarriedOver {
                epoch: 1,
                before: 2,
                ids: vec![3],
            }],
        },
    }
}
