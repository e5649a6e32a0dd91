//! The NUMA node of a GPU: the processors and the memory that are nearest to it.

use std::fs;
use std::path::{Path, PathBuf};

use crate::gpu::{Gpu, PciAddress};

/// Folder in which Linux shows devices.
const SYSFS: &str = "/sys";
/// Variable with another folder in its place, for tests. A release build does not look at it.
const VARIABLE: &str = "COPREP_TEST_SYSFS";

/// A NUMA node of the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NumaNode {
    number: u32,
    cpus: Vec<usize>,
}

impl NumaNode {
    /// Returns the node that a GPU is attached to. `None` if the machine has no such nodes, or does not say which one it
    /// is, as most virtual machines.
    #[must_use]
    pub fn of(gpu: &Gpu) -> Option<Self> {
        Self::read(&sysfs(), gpu.pci_address().ok()?)
    }

    fn read(sysfs: &Path, address: PciAddress) -> Option<Self> {
        let device = sysfs.join(format!("bus/pci/devices/{address}/numa_node"));
        // -1 stands for a device of no node.
        let number: u32 = fs::read_to_string(device).ok()?.trim().parse().ok()?;
        let list = sysfs.join(format!("devices/system/node/node{number}/cpulist"));
        let cpus = parse_list(fs::read_to_string(list).ok()?.trim())?;
        Some(NumaNode { number, cpus })
    }

    /// Returns the number of the node, as `numactl` takes it.
    #[must_use]
    pub fn number(&self) -> u32 {
        self.number
    }

    /// Returns the numbers of the node's processors. A node may have memory alone.
    #[must_use]
    pub fn cpus(&self) -> &[usize] {
        &self.cpus
    }
}

fn sysfs() -> PathBuf {
    let other = std::env::var_os(VARIABLE).filter(|_| cfg!(debug_assertions));
    other.map_or(SYSFS.into(), PathBuf::from)
}

/// Reads a list of processors as Linux writes it: `0-3,8,10-11`. Returns `None` if it is something else.
fn parse_list(text: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    // The list of a node that has memory alone is empty.
    for part in text.split(',').filter(|part| !part.is_empty()) {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (first.parse().ok()?, last.parse().ok()?);
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use super::*;

    const GPU: PciAddress = PciAddress {
        domain: 0x1_0000,
        bus: 0xc1,
        device: 2,
    };

    /// Returns a folder as of Linux, in which the GPU is attached to a node.
    fn machine(node: &str, cpus: &str) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let device = root.path().join("bus/pci/devices/10000:c1:02.0");
        let nodes = root.path().join("devices/system/node/node1");
        for (folder, file, text) in [(device, "numa_node", node), (nodes, "cpulist", cpus)] {
            fs::create_dir_all(&folder).unwrap();
            fs::write(folder.join(file), text).unwrap();
        }
        root
    }

    fn node(node: &str, cpus: &str) -> Option<NumaNode> {
        NumaNode::read(machine(node, cpus).path(), GPU)
    }

    #[test]
    fn the_node_of_a_gpu_is_found_by_its_address_on_the_bus() {
        let found = node("1\n", "4-7,12,14-15\n").unwrap();
        assert_eq!((found.number(), found.cpus().len()), (1, 7));
        assert_eq!(found.cpus(), [4, 5, 6, 7, 12, 14, 15]);
        assert_eq!(node("1\n", "\n").unwrap().cpus(), [0_usize; 0]);
    }

    #[test]
    fn a_machine_that_does_not_say_the_node_has_none() {
        assert_eq!(node("-1\n", "0-3\n"), None);
        assert_eq!(node("0\n", "0-3\n"), None, "there is no such node");
        assert_eq!(node("1\n", "all\n"), None);
        assert_eq!(NumaNode::read(Path::new("/nowhere"), GPU), None);
    }
}
