//! The processors that the process runs on.

use coprep_device::NumaNode;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;

/// The calling thread.
const HERE: Pid = Pid::from_raw(0);

/// Lets this thread, and those that it starts from now on, run only on the processors of a NUMA node that it may use.
/// Returns `false` if there are none, and changes nothing then.
///
/// Memory that such a thread is the first to touch is of that node, so what the processor copies before the GPU does, and
/// what it writes for the GPU to read, crosses no link between nodes.
pub(crate) fn stay_on(node: &NumaNode) -> bool {
    let Ok(allowed) = sched_getaffinity(HERE) else {
        return false;
    };
    let Some(wanted) = common(&allowed, node.cpus()) else {
        return false;
    };
    // Where a control group has just taken these processors away, the kernel refuses.
    sched_setaffinity(HERE, &wanted).is_ok()
}

/// Returns those of `cpus` that are allowed, or `None` if none is.
fn common(allowed: &CpuSet, cpus: &[usize]) -> Option<CpuSet> {
    let mut common = CpuSet::new();
    let mut any = false;
    for &cpu in cpus {
        // A number beyond those that a set has is an error, and allowed by none.
        if allowed.is_set(cpu).unwrap_or(false) {
            any |= common.set(cpu).is_ok();
        }
    }
    any.then_some(common)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn set(cpus: &[usize]) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.iter().for_each(|&cpu| set.set(cpu).unwrap());
        set
    }

    #[test]
    fn only_processors_that_are_allowed_are_used() {
        let allowed = set(&[2, 3, 9]);
        assert_eq!(common(&allowed, &[0, 1, 2, 3]), Some(set(&[2, 3])));
        assert_eq!(common(&allowed, &[0, 1]), None);
        assert_eq!(common(&allowed, &[]), None);
        assert_eq!(common(&allowed, &[1 << 20, 9]), Some(set(&[9])));
    }
}
