//! CPUs near a device, and threads that stay on them.
//!
//! Memory is placed where the thread runs that first writes it. What a thread fills for a device on
//! another socket than its own crosses the link between the sockets twice.

use std::fs;
use std::path::Path;

use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// What the system says of its devices.
const SYSTEM: &str = "/sys";

/// The CPUs of the NUMA node that a device is at.
#[derive(Debug)]
pub(crate) struct NearCpus(Vec<usize>);

impl NearCpus {
    /// Those of a PCI device, `0000:3b:00.0`; `None` where the system does not know.
    pub(crate) fn of_pci_device(address: &str) -> Option<NearCpus> {
        NearCpus::listed(Path::new(SYSTEM), address)
    }

    fn listed(system: &Path, address: &str) -> Option<NearCpus> {
        let read = |file: &Path| fs::read_to_string(file).ok();
        let node = read(&system.join("bus/pci/devices").join(address).join("numa_node"))?;
        // -1 where there is one node, or the firmware does not say.
        let node: u32 = node.trim().parse().ok()?;
        let list = read(&system.join(format!("devices/system/node/node{node}/cpulist")))?;
        cpus_of(list.trim()).map(NearCpus)
    }

    /// Keeps this thread on those of the CPUs that it may run on. Does nothing where it may run on
    /// none of them, or on no others, or where the system refuses.
    pub(crate) fn keep_thread(&self) {
        if let Ok(own) = sched_getaffinity(None)
            && let Some(near) = self.among(&own)
        {
            // It is a matter of speed alone.
            let _ = sched_setaffinity(None, &near);
        }
    }

    /// Those that are among `own`; `None` where that is none or all of them.
    fn among(&self, own: &CpuSet) -> Option<CpuSet> {
        let mut near = CpuSet::new();
        let known = self.0.iter().filter(|&&cpu| cpu < CpuSet::MAX_CPU);
        known.filter(|&&cpu| own.is_set(cpu)).for_each(|&cpu| near.set(cpu));
        (near.count() > 0 && near != *own).then_some(near)
    }
}

/// The numbers of a list such as `0-15,32-47`; `None` for what is no such list.
fn cpus_of(list: &str) -> Option<Vec<usize>> {
    let mut cpus = Vec::new();
    for range in list.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let [first, last]: [Option<usize>; 2] = [first, last].map(|cpu| cpu.parse().ok());
        let (first, last) = (first?, last?);
        // What is beyond that is not in a set.
        if first > last || last >= CpuSet::MAX_CPU {
            return None;
        }
        cpus.extend(first..=last);
    }
    Some(cpus)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// A folder of files, removed when this is dropped.
    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str, files: &[(&str, &str)]) -> Folder {
            let name = format!("maxsim-numa-{name}-{}", std::process::id());
            let folder = Folder(std::env::temp_dir().join(name));
            for (file, contents) in files {
                let file = folder.0.join(file);
                fs::create_dir_all(file.parent().unwrap()).unwrap();
                fs::write(file, contents).unwrap();
            }
            folder
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn set(cpus: impl IntoIterator<Item = usize>) -> CpuSet {
        let mut set = CpuSet::new();
        cpus.into_iter().for_each(|cpu| set.set(cpu));
        set
    }

    #[test]
    fn lists_of_cpus_are_read() {
        assert_eq!(cpus_of("0-3,8,10-11"), Some(vec![0, 1, 2, 3, 8, 10, 11]));
        assert_eq!(cpus_of("7"), Some(vec![7]));
        for wrong in ["", "1-", "-1", "3-1", "a", "0,,1", "0-99999999999", "1 2"] {
            assert_eq!(cpus_of(wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn a_device_has_the_cpus_of_its_node() {
        let folder = Folder::new(
            "nodes",
            &[
                ("bus/pci/devices/0000:3b:00.0/numa_node", "1\n"),
                ("bus/pci/devices/0000:5e:00.0/numa_node", "-1\n"),
                ("bus/pci/devices/0000:af:00.0/numa_node", "2\n"),
                ("devices/system/node/node0/cpulist", "0-1\n"),
                ("devices/system/node/node1/cpulist", "2-3,6\n"),
            ],
        );
        let listed = |address: &str| NearCpus::listed(&folder.0, address).map(|near| near.0);
        assert_eq!(listed("0000:3b:00.0"), Some(vec![2, 3, 6]));
        assert_eq!(listed("0000:5e:00.0"), None, "one node");
        assert_eq!(listed("0000:af:00.0"), None, "a node without CPUs");
        assert_eq!(listed("0000:00:00.0"), None, "no such device");
    }

    #[test]
    fn a_thread_stays_within_what_it_may_run_on() {
        let near = NearCpus(vec![2, 3, 6]);
        assert_eq!(near.among(&set(0..8)), Some(set([2, 3, 6])));
        assert_eq!(near.among(&set([0, 3, 6])), Some(set([3, 6])));
        assert_eq!(near.among(&set([0, 1])), None, "another node's alone");
        assert_eq!(near.among(&set([2, 6])), None, "no others");
    }

    #[test]
    fn a_thread_is_kept_and_others_are_not() {
        let own = sched_getaffinity(None).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| own.is_set(cpu)).unwrap();
        let kept = std::thread::spawn(move || {
            NearCpus(vec![first]).keep_thread();
            sched_getaffinity(None).unwrap()
        });
        assert_eq!(kept.join().unwrap(), set([first]));
        assert_eq!(sched_getaffinity(None).unwrap(), own);
    }
}
