//! Residual-compressed documents in stream order, and in memory of the caller: gradients of queries
//! are those of the synchronous call to the bit, and so are scores.

use bytemuck::cast_slice;
use maxsim::format::{Element, RawResiduals, Residual};
use maxsim::residual::{Arrangement, ResidualTokens};
use maxsim::stream::Queue;
use maxsim::training::{BackwardOptions, GradientType};
use maxsim::{Device, DeviceTokens, Pairing, ScoreOptions, Scores, Tokens};

use crate::gpu::{memory, same_bits, text};

/// The arguments of a call with gradients.
pub struct Call<'a, T: Element> {
    /// The device of the call.
    pub device: &'a Device,
    /// Queries in host memory.
    pub queries: &'a Tokens<'a, T>,
    /// The documents in host memory.
    pub documents: &'a ResidualTokens<'a>,
    /// The same on the device.
    pub on_device: &'a DeviceTokens<Residual<T>>,
    /// Which of them meet.
    pub pairing: &'a Pairing,
    /// Gradients of the scores.
    pub grad_scores: &'a [f32],
}

impl<T: Element> Call<'_, T> {
    /// Compares what streams give with the queries' gradient of the synchronous call.
    pub fn check(&self, expected: &[f32]) -> Result<(), String> {
        let (scores, gradient) = self.enqueue(self.on_device)?;
        let bits = |values: &[f32]| values.iter().map(|x| x.to_bits()).collect::<Vec<u32>>();
        if bits(&gradient) != bits(expected) {
            return Err("another gradient of queries in stream order".into());
        }
        if self.device.ordinal().is_none() {
            return Ok(());
        }
        let memory = Memory::new::<T>(self.device, self.documents)?;
        // SAFETY: the memory outlives the view, and nothing else writes to it.
        let view = unsafe {
            let layout = self.documents.layout().clone();
            DeviceTokens::<Residual<T>>::from_raw_residuals(self.device, memory.raw, layout)
        };
        let view = view.map_err(text)?;
        let mut stream = self.device.stream().map_err(text)?;
        // SAFETY: as above.
        let found = unsafe { stream.find_residual_norms(&view) };
        found.and_then(|()| stream.synchronize()).map_err(text)?;
        let (of_view, gradient) = self.enqueue(&view)?;
        if !same_bits(&scores, &of_view) {
            return Err("other scores of documents in memory of the caller".into());
        }
        match bits(&gradient) == bits(expected) {
            true => Ok(()),
            false => Err("another gradient with documents in memory of the caller".into()),
        }
    }

    /// Scores and the queries' gradient, of two calls on a stream.
    fn enqueue(&self, documents: &DeviceTokens<Residual<T>>) -> Result<(Scores, Vec<f32>), String> {
        let call = || {
            let queries = self.device.upload(self.queries)?;
            let options = ScoreOptions::default().winners(true);
            let work = self.device.prepare(&queries, documents, self.pairing, &options)?;
            let options = BackwardOptions::default();
            let backward = self.device.prepare_backward(&work, &options, GradientType::F32)?;
            let (mut scores, mut gradients) = (work.new_scores()?, backward.new_gradients()?);
            let grad_scores = backward.upload_grad_scores(self.grad_scores)?;
            let mut stream = self.device.stream()?;
            stream.score_into(&queries, documents, &work, &mut scores)?;
            let with_grad = scores.with_grad(&grad_scores);
            stream.backward_residual(&queries, documents, &backward, with_grad, &mut gradients)?;
            Ok((scores.read()?, gradients.read()?))
        };
        let (scores, gradients) = call().map_err(text)?;
        match gradients.documents.is_empty() {
            true => Ok((scores, gradients.queries)),
            false => Err("a gradient of compressed documents".into()),
        }
    }
}

/// Documents in device memory, arranged by the test.
struct Memory {
    raw: RawResiduals,
    _parts: Vec<DeviceTokens<f32>>,
}

impl Memory {
    fn new<T: Element>(device: &Device, tokens: &ResidualTokens<'_>) -> Result<Memory, String> {
        let (codec, rows) = (tokens.codec(), tokens.codes().len());
        let arrangement =
            Arrangement::new(codec.dim(), codec.nbits(), tokens.order()).map_err(text)?;
        let n = rows + arrangement.padding_rows;
        let mut codes = tokens.codes().to_vec();
        codes.resize(n, 0);
        let mut residuals = vec![0xA5; n * arrangement.row_bytes];
        let to = residuals.chunks_exact_mut(arrangement.row_bytes);
        for (from, to) in tokens.residuals().chunks_exact(codec.row_bytes()).zip(to) {
            arrangement.arrange(from, to);
        }
        let narrow = |values: &[f32]| -> Vec<u8> {
            let values: Vec<T> = values.iter().map(|&x| T::from_f32(x)).collect();
            cast_slice(&values).to_vec()
        };
        let mut centroids = vec![0; codec.n_centroids() * arrangement.centroid_bytes];
        let of_rows = codec.centroids().to_f32();
        let to = centroids.chunks_exact_mut(arrangement.centroid_bytes);
        for (from, to) in of_rows.chunks_exact(codec.dim()).zip(to) {
            let from = narrow(from);
            to[..from.len()].copy_from_slice(&from);
        }
        let weights = narrow(codec.bucket_weights());
        let mut table = vec![0; arrangement.weight_bytes];
        for (k, weight) in weights.chunks_exact(2).take(16).enumerate() {
            (table[k], table[16 + k]) = (weight[0], weight[1]);
        }
        table[32..][..weights.len()].copy_from_slice(&weights);
        let mut parts = [cast_slice(&codes), &residuals, &centroids, &table]
            .map(|bytes| memory(device, bytes))
            .into_iter()
            .collect::<Result<Vec<_>, String>>()?;
        let at = |i: usize| parts[i].access().base;
        let raw =
            RawResiduals::new(codec.nbits(), [at(0), at(1)], (at(2), codec.n_centroids()), at(3));
        let norms = codec.normalize().then(|| memory(device, &vec![0xFF; n * 4])).transpose()?;
        let mask = tokens.mask().map(|mask| memory(device, mask)).transpose()?;
        let base = |part: &Option<DeviceTokens<f32>>| part.as_ref().map(|x| x.access().base);
        let raw = raw.norms(base(&norms)).mask(base(&mask));
        parts.extend(norms.into_iter().chain(mask));
        Ok(Memory { raw, _parts: parts })
    }
}
