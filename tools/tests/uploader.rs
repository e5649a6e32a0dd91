//! The process that copies minibatches to a GPU, beside the fake driver of `tests/fake_cuda`, as its coordinator sees it.
#![expect(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeSet;
use std::fs;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command};

use coprep_fake_cuda::install::install;
use coprep_protocol::frame;
use coprep_protocol::spec::{Dtype, Field};
use coprep_protocol::uploader::{OpenRing, UploaderEvent, UploaderRequest};
use coprep_shared_memory::handover::{Doorbell, Sender};
use coprep_shared_memory::staging::{Layout, StagingPool};
use nix::sched::sched_getaffinity;
use nix::unistd::Pid;
use tempfile::TempDir;

const SLOTS: u32 = 4;
const BUFFERS: u32 = 2;

/// A machine whose only GPU is attached to NUMA node 7.
struct Machine(TempDir);

impl Machine {
    /// `node` is what the kernel says of the GPU, and `cpus` the processors of node 7.
    fn new(node: &str, cpus: &str) -> Self {
        let root = tempfile::tempdir().unwrap();
        install(root.path()).unwrap();
        let write = |folder: &str, file: &str, text: &str| {
            let folder = root.path().join(folder);
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), format!("{text}\n")).unwrap();
        };
        write("bus/pci/devices/00fa:40:00.0", "numa_node", node);
        write("devices/system/node/node7", "cpulist", cpus);
        Machine(root)
    }

    fn start(&self, socket: UnixStream) -> Child {
        Command::new(env!("CARGO_BIN_EXE_coprep"))
            .args(["uploader", "GPU-fafafafa-fafa-fafa-fafa-fafafafafa00"])
            .env("LD_LIBRARY_PATH", self.0.path())
            .env("COPREP_TEST_SYSFS", self.0.path())
            .stdin(OwnedFd::from(socket))
            .spawn()
            .unwrap()
    }

    /// Has an uploader open a ring. Returns the NUMA node that it names, and the processors of its threads that run after
    /// it has found the GPU.
    fn node_and_cpus(&self) -> (Option<u32>, BTreeSet<String>) {
        let (socket, theirs) = UnixStream::pair().unwrap();
        let mut process = self.start(theirs);
        open_ring(&socket);
        let event = frame::receive_despite_signals::<UploaderEvent>(&socket)
            .unwrap()
            .0;
        let UploaderEvent::Opened { node, .. } = event else {
            panic!("{event:?}");
        };
        let cpus = threads_cpus(process.id());
        drop(socket);
        assert!(process.wait().unwrap().success());
        (node, cpus)
    }
}

/// Asks for a ring of a small staging area.
fn open_ring(socket: &UnixStream) {
    let pool = StagingPool::create(Layout::new(&[8], SLOTS, BUFFERS).unwrap()).unwrap();
    let mut sender = Sender::create(8).unwrap();
    let (deliver, reply) = sender.fds().unwrap();
    let bell = Doorbell::new().unwrap().bell().unwrap();
    let descriptors = [
        pool.reader_fd().unwrap(),
        deliver,
        reply,
        bell.fd().unwrap(),
    ];
    let label = Field {
        name: "label".into(),
        dtype: Dtype::I64,
        shape: Vec::new(),
    };
    let request = UploaderRequest::Open(OpenRing {
        ring: 1,
        fields: vec![label],
        slots: SLOTS,
        buffers: BUFFERS,
        fewest: 4,
        most: 18,
        budget: 1 << 20,
    });
    let numbers: Vec<_> = descriptors.iter().map(AsRawFd::as_raw_fd).collect();
    frame::send(socket, &request, &numbers).unwrap();
}

/// Returns the lists of processors that the main thread of a process may use, and its threads that serve rings.
fn threads_cpus(pid: u32) -> BTreeSet<String> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let status = |folder: &Path| fs::read_to_string(folder.join("status")).unwrap();
    let found = threads.filter_map(|thread| {
        let status = status(&thread.unwrap().path());
        let value = |key: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(key));
            line.unwrap().trim().to_owned()
        };
        let is_ours = ["coprep", "ring"].contains(&value("Name:").as_str());
        is_ours.then(|| value("Cpus_allowed_list:"))
    });
    found.collect()
}

/// Returns the last processor that this test may use.
fn last_cpu() -> usize {
    let allowed = sched_getaffinity(Pid::from_raw(0)).unwrap();
    let mut cpus = (0..nix::sched::CpuSet::count()).filter(|&cpu| allowed.is_set(cpu).unwrap());
    cpus.next_back().unwrap()
}

#[test]
fn an_uploader_runs_on_the_processors_of_its_gpus_numa_node() {
    let cpu = last_cpu().to_string();
    // The node has processors, too, that this test may not use.
    let machine = Machine::new("7", &format!("{cpu},1022-1023"));
    let expected = (Some(7), BTreeSet::from([cpu]));
    assert_eq!(machine.node_and_cpus(), expected);
}

#[test]
fn without_a_node_or_its_processors_an_uploader_runs_on_all() {
    let own = fs::read_to_string("/proc/thread-self/status").unwrap();
    let own = own
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let own = own.unwrap().trim().to_owned();
    for (node, cpus) in [
        ("-1", "0"),
        ("7", ""),
        ("7", "1023"),
        ("3", "0"),
        ("?", "0"),
    ] {
        let found = Machine::new(node, cpus).node_and_cpus();
        let expected = (None, BTreeSet::from([own.clone()]));
        assert_eq!(found, expected, "node {node} of processors {cpus}");
    }
}
