//! Items that the device alone knows, of compressed documents: scores and gradients of them are
//! those of items that the host knows. Numbers are whole, and scales powers of two.

use half::{bf16, f16};
use maxsim::format::{
    Element, Format, Fp8, Int8, Int8Affine, Quantized, RawIndices, RawItems, RawItemsOut, RawRows,
    RawScaleWords, Residual, Scales,
};
use maxsim::residual::{BitOrder, Centroids, ResidualCodec, ResidualTokens};
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, GradientType};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, TokenLayout, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gpu::text;

use super::items::{DIM, Documents, LEN, Memory, QUERY, ROWS, check, numbers, queries};

/// Codes of a format, on the device as GPUs read them.
struct Codes<F: Quantized> {
    stored: Vec<F::Stored>,
    scales: Scales<'static>,
    on_device: DeviceTokens<F>,
    words: Memory,
}

/// A power of two for each row.
fn powers<V>(rows: usize, of: impl Fn(f32) -> V) -> Vec<V> {
    (0..rows).map(|row| of([1.0, 0.5, 2.0, 0.25][row % 4])).collect()
}

impl<F: Quantized> Codes<F> {
    fn new(device: &Device, code: impl Fn(f32) -> F::Stored) -> Result<Codes<F>, String> {
        let scales = match F::FORMAT == Int8Affine::FORMAT {
            true => Scales::Affine {
                scales: powers(ROWS, f16::from_f32).into(),
                mins: powers(ROWS, |x| f16::from_f32(-4.0 * x)).into(),
            },
            false => Scales::F32(powers(ROWS, |x| x).into()),
        };
        let stored: Vec<_> = numbers::<f32>(ROWS, 77).into_iter().map(code).collect();
        let layout = TokenLayout::padded(ROWS / LEN, LEN, DIM).map_err(text)?;
        let tokens = Tokens::<F>::from_codes(&stored, scales.clone(), layout).map_err(text)?;
        let on_device = device.upload(&tokens).map_err(text)?;
        let word = |row: usize| match &scales {
            Scales::Affine { scales, mins } => {
                u32::from(scales[row].to_bits()) | u32::from(mins[row].to_bits()) << 16
            }
            scales => scales.scale(row).to_bits(),
        };
        let mut words: Vec<u32> = (0..ROWS).map(word).collect();
        words.resize((RawScaleWords::len_bytes(ROWS) / 4) as usize, u32::MAX);
        let words = Memory::new(device, &words)?;
        Ok(Codes { stored, scales, on_device, words })
    }

    fn queries(device: &Device, n: usize, code: impl Fn(f32) -> F::Stored) -> DeviceTokens<F> {
        let stored: Vec<_> = numbers::<f32>(n * QUERY, 5).into_iter().map(code).collect();
        let layout = TokenLayout::padded(n, QUERY, DIM).expect("a layout");
        let scales = Scales::F32(powers(n * QUERY, |x| x).into());
        let tokens = Tokens::<F>::from_codes(&stored, scales, layout).expect("codes");
        device.upload(&tokens).expect("queries")
    }
}

impl<F: Quantized> Documents<F> for Codes<F> {
    fn known(&self, device: &Device, layout: TokenLayout) -> maxsim::Result<DeviceTokens<F>> {
        device.upload(&Tokens::<F>::from_codes(&self.stored, self.scales.clone(), layout)?)
    }

    unsafe fn unread(
        &self,
        device: &Device,
        segments: u64,
        layout: TokenLayout,
    ) -> maxsim::Result<DeviceTokens<F>> {
        let access = self.on_device.access();
        let rows = RawRows::new(access.base, access.pitch_bytes).segments(segments);
        let words = RawScaleWords::new(self.words.address());
        // SAFETY: the caller's promise.
        unsafe { DeviceTokens::from_raw_codes_unchecked(device, rows, words, layout) }
    }
}

#[test]
fn scores_of_codes_whose_items_the_device_alone_knows() {
    for device in cuda_devices() {
        let int8 = Codes::<Int8>::new(device, |x| x as i8).unwrap();
        let affine = Codes::<Int8Affine>::new(device, |x| (x + 4.0) as u8).unwrap();
        let fp8 = Codes::<Fp8>::new(device, fp8_of).unwrap();
        for is_wide in [false, true] {
            for n in [1, 2, 40] {
                let of_int8 = Codes::<Int8>::queries(device, n, |x| x as i8);
                check(device, is_wide, &of_int8, &int8).unwrap();
                check(device, is_wide, &of_int8, &affine).unwrap();
                check(device, is_wide, &queries::<f16>(device, n).unwrap(), &affine).unwrap();
                check(device, is_wide, &queries::<bf16>(device, n).unwrap(), &affine).unwrap();
                let of_fp8 = Codes::<Fp8>::queries(device, n, fp8_of);
                check(device, is_wide, &of_fp8, &fp8).unwrap();
            }
        }
    }
}

/// The code of a whole number up to 4.
fn fp8_of(x: f32) -> u8 {
    let magnitude = [0, 0x38, 0x40, 0x44, 0x48][x.abs() as usize];
    if x < 0.0 { magnitude | 0x80 } else { magnitude }
}

/// Residual-compressed documents with centroids and weights that are whole numbers.
struct Index<T: Element> {
    nbits: u32,
    on_device: DeviceTokens<Residual<T>>,
}

impl<T: Element> Index<T> {
    fn new(device: &Device, nbits: u32) -> Result<Index<T>, String> {
        let layout = TokenLayout::padded(ROWS / LEN, LEN, DIM).map_err(text)?;
        let tokens = residuals(nbits, layout).map_err(text)?;
        Ok(Index { nbits, on_device: device.upload_residual::<T>(&tokens).map_err(text)? })
    }
}

fn residuals(nbits: u32, layout: TokenLayout) -> maxsim::Result<ResidualTokens<'static>> {
    let n_centroids = 5;
    let centroids = Centroids::F32(numbers::<f32>(n_centroids, 9).into());
    let weights: Vec<f32> = (0..1 << nbits).map(|i| (i * 7 % 5) as f32 - 2.0).collect();
    let codec = ResidualCodec::new(nbits, DIM, centroids, &weights, false)?;
    let codes: Vec<i32> = (0..ROWS).map(|row| (row * 7 % n_centroids) as i32).collect();
    let len_bytes = ROWS * DIM * nbits as usize / 8;
    let bytes: Vec<u8> = (0..len_bytes).map(|i| ((i as u64 * 2_654_435_761) >> 11) as u8).collect();
    ResidualTokens::new(codec.into(), codes, bytes, BitOrder::LittleEndian, layout)
}

impl<T: Element> Documents<Residual<T>> for Index<T> {
    fn known(
        &self,
        device: &Device,
        layout: TokenLayout,
    ) -> maxsim::Result<DeviceTokens<Residual<T>>> {
        device.upload_residual::<T>(&residuals(self.nbits, layout)?)
    }

    unsafe fn unread(
        &self,
        _: &Device,
        segments: u64,
        layout: TokenLayout,
    ) -> maxsim::Result<DeviceTokens<Residual<T>>> {
        // SAFETY: the caller's promise.
        unsafe { self.on_device.with_raw_segments(segments, layout) }
    }
}

#[test]
fn scores_of_residuals_whose_items_the_device_alone_knows() {
    for device in cuda_devices() {
        for nbits in [1, 2, 4, 8] {
            let index = Index::<f16>::new(device, nbits).unwrap();
            let of_bf16 = Index::<bf16>::new(device, nbits).unwrap();
            for n in [1, 2, 40] {
                check(device, true, &queries::<f16>(device, n).unwrap(), &index).unwrap();
                check(device, false, &queries::<bf16>(device, n).unwrap(), &of_bf16).unwrap();
            }
        }
    }
}

/// The queries' gradient of each query's own candidates, which only the device knows.
#[test]
fn gradients_of_queries_by_residuals_whose_items_the_device_alone_knows() {
    for device in cuda_devices() {
        for n in [1, 3, 40] {
            let (index, k) = (Index::<f16>::new(device, 4).unwrap(), 9);
            let queries = queries::<f16>(device, n).unwrap();
            let grad: Vec<f32> = (0..n * k).map(|i| (i % 5) as f32 - 2.0).collect();
            let ids: Vec<i64> =
                (0..(n * k) as i64).map(|i| (i * 13 + 1) % (ROWS / LEN) as i64).collect();
            let host_ids = Pairing::candidates(&ids, k).unwrap();
            let expected = gradient(device, &queries, &index.on_device, &host_ids, &grad).unwrap();
            let on_device = Memory::new(device, &ids).unwrap();
            let segments = Memory::new(device, &vec![7u8; n * k * 8]).unwrap();
            let invalid = Memory::new(device, &vec![7u8; n * k]).unwrap();
            let items = RawItems::padded(ROWS / LEN, LEN, LEN, ROWS)
                .with_ids(n * k, RawIndices::I64(on_device.address()));
            let mut stream = device.stream().unwrap();
            let layout = TokenLayout::unread(ROWS, DIM, n * k, LEN, LEN).unwrap();
            // SAFETY: the lists are there until the gradient has been read, which waits.
            let some = unsafe {
                let out = RawItemsOut::new(invalid.address()).segments(segments.address());
                stream.write_segments(&items, out).unwrap();
                stream.synchronize().unwrap();
                index.on_device.with_raw_segments(segments.address(), layout).unwrap()
            };
            let own = Pairing::own_candidates(k);
            let found = gradient(device, &queries, &some, &own, &grad).unwrap();
            assert!(expected.iter().any(|&x| x != 0.0));
            assert_eq!(found, expected, "{device}: {n} queries");
        }
    }
}

fn gradient(
    device: &Device,
    queries: &DeviceTokens<f16>,
    documents: &DeviceTokens<Residual<f16>>,
    pairing: &Pairing,
    grad: &[f32],
) -> maxsim::Result<Vec<f32>> {
    let options = ScoreOptions::default().winners(true);
    let work = device.prepare(queries, documents, pairing, &options)?;
    let options = BackwardOptions::default();
    let backward = device.prepare_backward(&work, &options, GradientType::F32)?;
    let (mut scores, mut gradients) = (work.new_scores()?, backward.new_gradients()?);
    let grad_scores = backward.upload_grad_scores(grad)?;
    let mut stream = device.stream()?;
    stream.score_into(queries, documents, &work, &mut scores)?;
    let with_grad = scores.with_grad(&grad_scores);
    stream.backward_residual(queries, documents, &backward, with_grad, &mut gradients)?;
    Ok(gradients.read()?.queries)
}
