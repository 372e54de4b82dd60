//! Units of the contiguous kernels: runs of rows (`maxsim_kernels::abi::params::ContiguousParams`).

use std::ops::Range;

use maxsim_kernels::abi::params::{ContiguousUnit, inverse};
use maxsim_kernels::abi::stream_k::first_step;

use super::partition::Even;
use super::work_list::{Launch, Units, WorkList};
use crate::tokens::layout::TokenLayout;
use crate::tokens::layout::regular_len;

impl WorkList {
    /// Lists the units of all launches that the kernel cannot compute, instead of what other
    /// kernels read.
    pub(in crate::cuda) fn list_contiguous(&mut self, documents: &TokenLayout) {
        let is_regular = regular_len(documents.segments()).is_some();
        let tiles_are_queries = self.tiles.query_len() > 0;
        let entry_stride = self.entry_stride;
        let are_even = |launch: &Launch| match launch.units {
            Units::Even(even) => even.longer_by <= 1 || launch.is_dynamic,
            _ => false,
        };
        let can_compute = |launch: &Launch| {
            matches!(launch.units, Units::StreamK(_))
                || are_even(launch)
                    && is_regular
                    && (launch.entries.start, launch.tiles.start) == (0, 0)
                    && (entry_stride == 0 || tiles_are_queries)
                    && (launch.tiles.len() == 1
                        || inverse(launch.tiles.len() as u32, launch.n_units) != 0)
        };
        let mut launches = std::mem::take(&mut self.launches);
        // A query stays in registers under the dynamic scheduler.
        debug_assert!(launches.iter().all(|launch| !launch.is_dynamic || launch.tiles.len() == 1));
        for launch in launches.iter_mut().filter(|launch| !can_compute(launch)) {
            let first = self.run_units.len() as u32;
            for u in 0..launch.n_units {
                let (tile, entries) = self.unit(launch, u);
                let segment = |entry: u32| documents.segments()[entry as usize];
                let ([start, _], [last, len]) = (segment(entries.start), segment(entries.end - 1));
                self.run_units.push(ContiguousUnit {
                    tile,
                    entry: entries.start,
                    entry_end: entries.end,
                    start,
                    end: last + len,
                    reserved: [0; 3],
                });
            }
            launch.units = Units::Contiguous(first);
        }
        self.launches = launches;
        self.units.clear();
        self.unit_starts.clear();
    }

    /// Unit `u` of a launch: tile and entries, as kernels see it.
    pub(in crate::cuda) fn unit(&self, launch: &Launch, u: u32) -> (u32, Range<u32>) {
        let n_tiles = launch.tiles.len() as u32;
        let (tile, chunk) = (launch.tiles.start + u % n_tiles.max(1), u / n_tiles.max(1));
        match launch.units {
            Units::Listed(first) => {
                let unit = self.units[(first + u) as usize];
                (unit.tile, unit.entry_begin..unit.entry_end)
            }
            Units::Contiguous(first) => {
                let unit = self.run_units[(first + u) as usize];
                (unit.tile, unit.entry..unit.entry_end)
            }
            Units::Starts(first) => {
                let starts = &self.unit_starts[(first + chunk) as usize..];
                (tile, starts[0].entry..starts[1].entry)
            }
            Units::StreamK(shares) => {
                // Documents that end in the chunk.
                let step = |chunk| first_step(chunk, shares.per_unit, shares.n_longer);
                let [begin, end] =
                    [chunk, chunk + 1].map(|chunk| step(chunk) / shares.document_steps);
                (tile, begin..end)
            }
            Units::Even(Even { per_unit, n_longer, longer_by }) => {
                let query = match (self.entry_stride, self.tiles_per_query) {
                    (0, _) => 0,
                    (_, 0) => self.tiles.first_query(tile),
                    (_, n) => tile / n,
                };
                let first = query * self.entry_stride;
                let end = (first + self.entries_per_query).min(launch.entries.end);
                let begin = first.max(launch.entries.start)
                    + chunk * per_unit
                    + chunk.min(n_longer) * longer_by;
                let longer_by = if chunk < n_longer { longer_by } else { 0 };
                (tile, begin..(begin + per_unit + longer_by).min(end))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use crate::cuda::forward::work_list::Shape;
    use maxsim_kernels::abi::stream_k::Share;

    use super::*;
    use crate::cuda::forward::work_list_tests::{Random, SMALL, check, layout};
    use crate::plan::stream_k::Shares;
    use crate::problem::Problem;
    use crate::problem::pairing::Pairing;

    /// Tile, entries and rows of unit `u` of a launch, as `ContiguousParams` defines them.
    fn run(
        work: &WorkList,
        launch: &Launch,
        u: u32,
        item_len: u32,
    ) -> (u32, Range<u32>, Range<u32>) {
        match launch.units {
            Units::Contiguous(first) => {
                let unit = work.run_units[(first + u) as usize];
                (unit.tile, unit.entry..unit.entry_end, unit.start..unit.end)
            }
            Units::Even(even) if launch.is_dynamic => {
                assert_eq!((launch.tiles.len(), even.n_longer), (1, launch.grid));
                let first = even.per_unit + even.longer_by;
                let (begin, n) = match u < launch.grid {
                    true => (u * first, first),
                    false => (u * even.per_unit + even.n_longer * even.longer_by, even.per_unit),
                };
                let end = (begin + n).min(launch.entries.end);
                (launch.tiles.start, begin..end, begin * item_len..end * item_len)
            }
            Units::Even(even) => {
                let n_tiles = launch.tiles.len() as u32;
                let inverse = u64::from(inverse(n_tiles, launch.n_units));
                let chunk = if n_tiles == 1 { u } else { ((u64::from(u) * inverse) >> 32) as u32 };
                let tile = u - chunk * n_tiles;
                let begin =
                    tile * work.entry_stride + chunk * even.per_unit + chunk.min(even.n_longer);
                let end = begin + even.per_unit + u32::from(chunk < even.n_longer);
                (tile, begin..end, begin * item_len..end * item_len)
            }
            ref other => panic!("{other:?} are no runs"),
        }
    }

    #[test]
    fn units_are_their_documents_rows() {
        let mut random = Random(3);
        let (mut computed, mut dynamic) = ([0, 0], [0, 0]);
        for _ in 0..3000 {
            let alike = random.below(2) == 0;
            let lens = |random: &mut Random, n: usize, most: u64, alike: bool| -> Vec<usize> {
                let len = 1 + random.below(most) as usize;
                let own = |_| if alike { len } else { 1 + random.below(most) as usize };
                (0..n).map(own).collect()
            };
            let n_queries = 1 + random.below(5) as usize;
            let k = 1 + random.below(9) as usize;
            let queries_alike = random.below(2) == 0;
            let longest = [16, 32, 90][random.below(3) as usize];
            let mut query_lens = lens(&mut random, n_queries, longest, queries_alike);
            if random.below(4) == 0 {
                query_lens[0] = 0;
            }
            let document_lens = lens(&mut random, n_queries * k, 300, alike);
            let (queries, documents) = (layout(&query_lens), layout(&document_lens));
            let shape = Shape {
                query_tile: 32,
                n_blocks: 1 + random.below(9) as usize,
                partials_max: 1 + random.below(60),
                unit_tokens_max: [u64::MAX, 1 + random.below(600)][random.below(2) as usize],
                dynamic_tokens_min: [u64::MAX, 0, 50][random.below(3) as usize],
                is_contiguous: true,
                ..SMALL
            };
            for pairing in [Pairing::cross(), Pairing::own_candidates(k)] {
                let problem = Problem::new(&queries, &documents, &pairing).unwrap();
                check(&problem, &shape);
                let work = WorkList::new(&problem, &shape).unwrap();
                assert!(work.units.is_empty() && work.unit_starts.is_empty());
                let query_len = work.tiles.query_len();
                assert!(query_len == 0 || query_lens.iter().all(|&len| len as u32 == query_len));
                for launch in &work.launches {
                    let is_computed = usize::from(matches!(launch.units, Units::Even(_)));
                    computed[is_computed] += 1;
                    dynamic[is_computed] += usize::from(launch.is_dynamic);
                    for u in 0..launch.n_units {
                        let item_len = document_lens[0] as u32;
                        let (tile, entries, rows) = run(&work, launch, u, item_len);
                        assert_eq!((tile, entries.clone()), work.unit(launch, u));
                        let segment = |entry: u32| documents.segments()[entry as usize];
                        let last = segment(entries.end - 1);
                        assert_eq!(rows, segment(entries.start)[0]..last[0] + last[1]);
                    }
                }
            }
        }
        assert!(dynamic.iter().all(|&n| n > 100), "{dynamic:?} of them dynamic");
        assert!(computed.iter().all(|&n| n > 1000), "{computed:?} launches, listed and computed");
    }

    #[test]
    fn equal_shares_have_every_row_once() {
        let mut random = Random(4);
        let mut n_shared = 0;
        for _ in 0..2000 {
            let n_documents = 1 + random.below(40) as usize;
            let longest = [40, 300, 9000][random.below(3) as usize];
            let len = 1 + random.below(longest) as usize;
            let n_blocks = 1 + random.below(60) as usize;
            let shape =
                Shape { query_tile: 32, n_blocks, is_contiguous: true, is_stream_k: true, ..SMALL };
            let queries: &[usize] = [&[32][..], &[15, 9]][random.below(2) as usize];
            let (queries, documents) = (layout(queries), layout(&vec![len; n_documents]));
            let cross = Pairing::cross();
            let problem = Problem::new(&queries, &documents, &cross).unwrap();
            // The plan takes no such kernel for others.
            if Shares::of(n_documents as u32, len as u32, n_blocks).is_some() {
                check(&problem, &shape);
                let work = WorkList::new(&problem, &shape).unwrap();
                let [launch] = &work.launches[..] else { panic!("several launches") };
                let Units::StreamK(of) = launch.units else { panic!("no shares") };
                assert!(work.run_units.is_empty() && launch.tiles.len() == 1);
                n_shared += 1;
                let most = n_documents as u32 * of.document_steps;
                let division = [of.document_steps, inverse(of.document_steps, most)];
                let step = |u| first_step(u, of.per_unit, of.n_longer);
                let mut before = (0, false);
                for u in 0..launch.n_units {
                    let share = Share::new([step(u), step(u + 1)], division, len as u32);
                    // No share is empty, and each has the end of the partial document that the one
                    // before has published, or continues it.
                    assert_eq!((share.start, share.is_end), before);
                    assert!(share.start <= share.partial && share.partial <= share.end);
                    assert!(share.start < share.end);
                    assert_eq!(work.unit(launch, u), (0, share.first..share.last));
                    before = (share.end, share.partial < share.end);
                }
                assert_eq!(before, ((n_documents * len) as u32, false));
            }
        }
        assert!(n_shared > 300, "{n_shared} of them shared");
    }

    #[test]
    fn units_of_more_tiles_than_can_be_divided_by_are_listed() {
        let shape = Shape { query_tile: 32, n_blocks: 264, is_contiguous: true, ..SMALL };
        for (n_queries, is_listed) in [(60_000, false), (70_000, true)] {
            let (queries, documents) = (layout(&vec![3; n_queries]), layout(&vec![1; n_queries]));
            let pairing = Pairing::own_candidates(1);
            let problem = Problem::new(&queries, &documents, &pairing).unwrap();
            let work = WorkList::new(&problem, &shape).unwrap();
            let [launch] = &work.launches[..] else { panic!("{} launches", work.launches.len()) };
            assert_eq!(matches!(launch.units, Units::Contiguous(_)), is_listed);
            for u in (0..launch.n_units).step_by(997) {
                assert_eq!(run(&work, launch, u, 1), (u, u..u + 1, u..u + 1));
            }
        }
    }
}
