//! Items that the device alone knows: scores of them are those of items that the host knows.

use half::f16;
use maxsim::format::{Element, Format, RawIndices, RawItems, RawItemsOut, RawRows, ScorableWith};
use maxsim::stream::{Queue, Stream};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, Scores, TokenLayout, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;

pub(super) const DIM: usize = 128;
pub(super) const QUERY: usize = 32;
const N: usize = 70;
pub(super) const LEN: usize = 90;
pub(super) const ROWS: usize = N * LEN;

/// Memory of a device with numbers of any type, in rows of 16 bytes.
pub(super) struct Memory(DeviceTokens<f32>);

impl Memory {
    pub(super) fn new<V: bytemuck::NoUninit>(
        device: &Device,
        values: &[V],
    ) -> Result<Memory, String> {
        let mut bytes: Vec<u8> = bytemuck::cast_slice(values).to_vec();
        bytes.resize(bytes.len().next_multiple_of(16).max(16), 0);
        let words: Vec<f32> = bytes
            .chunks_exact(4)
            .map(|b| f32::from_bits(u32::from_le_bytes([b[0], b[1], b[2], b[3]])))
            .collect();
        let tokens = Tokens::padded(&words, words.len() / 4, 1, 4).map_err(text)?;
        Ok(Memory(device.upload(&tokens).map_err(text)?))
    }

    pub(super) fn address(&self) -> u64 {
        self.0.access().base
    }

    fn bytes(&self) -> Result<Vec<u8>, String> {
        let tokens = self.0.download().map_err(text)?;
        Ok(tokens.data().iter().flat_map(|word| word.to_bits().to_le_bytes()).collect())
    }
}

/// Whole numbers, so that sums are exact in whatever order.
pub(super) fn numbers<T: Element>(rows: usize, seed: usize) -> Vec<T> {
    let number = |i: usize| (((i * 31 + seed) * 2_654_435_761) >> 9) % 9;
    (0..rows * DIM).map(|i| T::from_f32(number(i) as f32 - 4.0)).collect()
}

/// Lengths with empty and full items among them.
fn lengths(longest: i64, seed: i64) -> Vec<i64> {
    (0..N as i64).map(|i| (i * 37 + seed) % (longest + 1)).collect()
}

/// Lists of the device: those of 64 bits, or the same in 32.
fn list(device: &Device, values: &[i64], is_wide: bool) -> Result<(Memory, RawIndices), String> {
    if is_wide {
        let memory = Memory::new(device, values)?;
        let indices = RawIndices::I64(memory.address());
        return Ok((memory, indices));
    }
    let narrow: Vec<i32> = values.iter().map(|&value| value as i32).collect();
    let memory = Memory::new(device, &narrow)?;
    let indices = RawIndices::I32(memory.address());
    Ok((memory, indices))
}

/// What a device finds of items: scores of one query or of several, and which items are invalid.
struct Found {
    scores: Vec<f32>,
    invalid: Vec<u8>,
}

/// Documents of a format on a device, of which some rows are items.
pub(super) trait Documents<D: Format> {
    /// The rows as items that the host knows.
    fn known(&self, device: &Device, layout: TokenLayout) -> maxsim::Result<DeviceTokens<D>>;

    /// The rows as items that the device alone knows.
    ///
    /// # Safety
    /// As [`DeviceTokens::from_raw_unchecked`] has it of segments.
    unsafe fn unread(
        &self,
        device: &Device,
        segments: u64,
        layout: TokenLayout,
    ) -> maxsim::Result<DeviceTokens<D>>;
}

/// Elements, in host memory and on the device.
struct Elements<T: Element>(Vec<T>, DeviceTokens<T>);

impl<T: Element> Elements<T> {
    fn new(device: &Device, rows: Vec<T>) -> Result<Elements<T>, String> {
        let all = Tokens::padded(&rows, rows.len() / LEN / DIM, LEN, DIM).map_err(text)?;
        let all = device.upload(&all).map_err(text)?;
        Ok(Elements(rows, all))
    }
}

impl<T: Element> Documents<T> for Elements<T> {
    fn known(&self, device: &Device, layout: TokenLayout) -> maxsim::Result<DeviceTokens<T>> {
        device.upload(&Tokens::from_layout(&self.0, layout)?)
    }

    unsafe fn unread(
        &self,
        device: &Device,
        segments: u64,
        layout: TokenLayout,
    ) -> maxsim::Result<DeviceTokens<T>> {
        let access = self.1.access();
        let rows = RawRows::new(access.base, access.pitch_bytes).segments(segments);
        // SAFETY: the caller's promise.
        unsafe { DeviceTokens::from_raw_unchecked(device, rows, layout) }
    }
}

/// Scores documents whose items the device finds.
fn find<Q: ScorableWith<D>, D: Format>(
    stream: &mut Stream,
    queries: &DeviceTokens<Q>,
    documents: &impl Documents<D>,
    items: &RawItems,
    pairing: &Pairing,
    planned_len: usize,
) -> Result<Found, String> {
    let device = stream.device().clone();
    let n = items.n_items();
    let (segments, invalid) = (Memory::new(&device, &vec![7u8; n * 8])?, vec![7u8; n]);
    let invalid = Memory::new(&device, &invalid)?;

    let layout = TokenLayout::unread(ROWS, DIM, n, LEN, planned_len).map_err(text)?;
    let out = RawItemsOut::new(invalid.address()).segments(segments.address());
    // SAFETY: memory and lists are there until the scores have been read, which waits.
    let view = unsafe {
        stream.write_segments(items, out).map_err(text)?;
        documents.unread(&device, segments.address(), layout).map_err(text)?
    };
    let options = ScoreOptions::default();
    let work = device.prepare_cached(queries, &view, pairing, &options).map_err(text)?;
    let mut scores = work.new_scores().map_err(text)?;
    stream.score_into(queries, &view, &work, &mut scores).map_err(text)?;
    let scores = scores.read().map_err(text)?;
    Ok(Found { scores: scores.values().to_vec(), invalid: invalid.bytes()?[..n].to_vec() })
}

/// Compares scores of items that the device alone knows with those of items that the host knows:
/// the same bits, of numbers whose sums are exact in whatever order.
pub(super) fn check<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    is_wide: bool,
    queries: &DeviceTokens<Q>,
    documents: &impl Documents<D>,
) -> Result<(), String> {
    let mut stream = device.stream().map_err(text)?;
    let known = |layout: &TokenLayout, pairing: &Pairing| -> Result<Scores, String> {
        let documents = documents.known(device, layout.clone()).map_err(text)?;
        device.score(queries, &documents, pairing).map_err(text)
    };
    let cross = Pairing::cross();
    let lens = lengths(LEN as i64, 3);
    let offsets: Vec<i64> = (0..=N).map(|i| lens[..i].iter().sum()).collect();
    let starts: Vec<i64> = (0..N as i64).map(|i| (i * 997) % (ROWS - LEN) as i64).collect();
    let (_a, on_lens) = list(device, &lens, is_wide)?;
    let (_b, on_offsets) = list(device, &offsets, is_wide)?;
    let (_c, on_starts) = list(device, &starts, is_wide)?;
    let padded = || TokenLayout::padded(N, LEN, DIM).map_err(text);
    let cases = [
        (
            RawItems::padded(N, LEN, LEN, ROWS).with_lengths(on_lens),
            padded()?.with_lengths(&lens).map_err(text)?,
        ),
        (
            RawItems::packed(N, on_offsets, ROWS, LEN),
            TokenLayout::packed(ROWS, DIM, &offsets).map_err(text)?,
        ),
        (
            RawItems::scattered(N, [on_starts, on_lens], ROWS, LEN),
            TokenLayout::scattered(ROWS, DIM, &starts, &lens).map_err(text)?,
        ),
        (RawItems::padded(N, LEN, LEN, ROWS), padded()?),
    ];
    for (i, (items, layout)) in cases.iter().enumerate() {
        let expected = known(layout, &cross)?;
        for planned_len in [LEN / 2, LEN, 1, 0] {
            let found = find(&mut stream, queries, documents, items, &cross, planned_len)?;
            if found.scores != expected.values() || found.invalid.iter().any(|&is| is != 0) {
                let of = D::FORMAT;
                return Err(format!("{device}, {of}, case {i}, planned {planned_len}: others"));
            }
        }
    }
    // Each query's own candidates, by ids that only the device knows.
    let (n_queries, k) = (queries.layout().n_items(), 9);
    let ids: Vec<i64> = (0..(n_queries * k) as i64).map(|i| (i * 13 + 1) % N as i64).collect();
    let (_d, on_ids) = list(device, &ids, is_wide)?;
    let host_ids = Pairing::candidates(&ids, k).map_err(text)?;
    for (items, layout) in &cases {
        let expected = known(layout, &host_ids)?;
        let items = items.with_ids(ids.len(), on_ids);
        let pairing = Pairing::own_candidates(k);
        let found = find(&mut stream, queries, documents, &items, &pairing, LEN)?;
        if found.scores != expected.values() || found.invalid.iter().any(|&is| is != 0) {
            return Err(format!("{device}, {}, candidates: other scores", D::FORMAT));
        }
    }
    Ok(())
}

/// Queries of whole numbers.
pub(super) fn queries<T: Element>(device: &Device, n: usize) -> Result<DeviceTokens<T>, String> {
    let rows: Vec<T> = numbers(n * QUERY, 5);
    device.upload(&Tokens::padded(&rows, n, QUERY, DIM).map_err(text)?).map_err(text)
}

fn check_elements<T: Element>(device: &Device, is_wide: bool, n: usize) -> Result<(), String> {
    let documents = Elements::new(device, numbers::<T>(ROWS, 77))?;
    check(device, is_wide, &queries::<T>(device, n)?, &documents)
}

#[test]
fn scores_of_items_that_the_device_alone_knows() {
    for device in cuda_devices() {
        for is_wide in [false, true] {
            for n_queries in [1, 2, 40] {
                check_elements::<f16>(device, is_wide, n_queries).unwrap();
                check_elements::<f32>(device, is_wide, n_queries).unwrap();
            }
        }
    }
}

/// Nothing outside the matrix is read: what is there is NaN, which would show.
#[test]
fn invalid_items_are_marked_and_empty() {
    for device in cuda_devices() {
        let mut stream = device.stream().unwrap();
        let queries = queries::<f16>(device, 1).unwrap();
        let mut data: Vec<f16> = numbers(ROWS, 77);
        data.extend(vec![f16::NAN; 4 * ROWS * DIM]);
        let all = Elements::new(device, data).unwrap();
        let (rows, len) = (ROWS as i64, LEN as i64);
        let items = [
            (0, 1, false),
            (-1, 1, true),
            (rows - 1, 1, false),
            (rows - 1, 2, true),
            (rows, 0, false),
            (rows + 1, 0, true),
            (0, len, false),
            (0, len + 1, true),
            (5, -1, true),
            (i64::MAX, i64::MAX, true),
            (i64::MIN, i64::MAX, true),
            (7, i64::MIN, true),
        ];
        let starts: Vec<i64> = items.iter().map(|item| item.0).collect();
        let lens: Vec<i64> = items.iter().map(|item| item.1).collect();
        let expected: Vec<u8> = items.iter().map(|item| item.2.into()).collect();
        let (_a, on_starts) = list(device, &starts, true).unwrap();
        let (_b, on_lens) = list(device, &lens, true).unwrap();
        let cross = Pairing::cross();
        let raw = RawItems::scattered(items.len(), [on_starts, on_lens], ROWS, LEN);
        let found = find(&mut stream, &queries, &all, &raw, &cross, LEN).unwrap();
        assert_eq!(found.invalid, expected);
        for (&(start, len, is_invalid), score) in items.iter().zip(&found.scores) {
            assert_eq!(*score == 0.0, is_invalid || len == 0, "{start}, {len}: {score}");
        }
        // Ids that are none, and offsets that fall.
        let ids = [0, -1, items.len() as i64, 2, i64::MIN];
        let (_c, on_ids) = list(device, &ids, true).unwrap();
        let pairing = Pairing::own_candidates(ids.len());
        let raw = raw.with_ids(ids.len(), on_ids);
        let found = find(&mut stream, &queries, &all, &raw, &pairing, LEN).unwrap();
        assert_eq!(found.invalid, [0, 1, 1, 0, 1]);
        let (_d, on_offsets) = list(device, &[0, 5, 3, 3, rows, rows + 1], false).unwrap();
        let raw = RawItems::packed(5, on_offsets, ROWS, LEN);
        let found = find(&mut stream, &queries, &all, &raw, &cross, LEN).unwrap();
        assert_eq!(found.invalid, [0, 1, 0, 1, 1]);
    }
}

#[test]
fn masks_have_the_rows_of_items_that_another_mask_has() {
    for device in cuda_devices() {
        let mut stream = device.stream().unwrap();
        let lens = lengths(QUERY as i64, 1);
        let (_a, on_lens) = list(device, &lens, false).unwrap();
        let mask_in: Vec<u8> = (0..N * QUERY).map(|i| (i * 7 % 5) as u8).collect();
        let other = Memory::new(device, &mask_in).unwrap();
        let [mask, invalid] = [N * QUERY, N].map(|n| Memory::new(device, &vec![9u8; n]).unwrap());
        let items = RawItems::padded(N, QUERY, QUERY, N * QUERY).with_lengths(on_lens);
        for mask_in in [None, Some(&mask_in)] {
            let at = mask_in.map(|_| other.address());
            let out = RawItemsOut::new(invalid.address()).mask(mask.address(), at);
            // SAFETY: the memory is there until the mask has been read, which waits.
            unsafe { stream.write_segments(&items, out) }.unwrap();
            stream.synchronize().unwrap();
            let found = mask.bytes().unwrap();
            for (i, found) in found[..N * QUERY].iter().enumerate() {
                let is_kept = mask_in.is_none_or(|mask| mask[i] != 0);
                let is_valid = ((i % QUERY) as i64) < lens[i / QUERY] && is_kept;
                assert_eq!(*found, u8::from(is_valid), "byte {i}");
            }
        }
    }
}
