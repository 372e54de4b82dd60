//! The command that scores handles.

use std::sync::Arc;

use super::prepared::{DeviceScores, PreparedScore};
use crate::cpu;
use crate::cpu::tokens::HostTokens;
use crate::device::Device;
use crate::device::command::{Command, CpuCall, CudaCommand, on_cpu};
use crate::device::tokens::DeviceTokens;
use crate::error::Result;
use crate::problem::Problem;
use crate::problem::options::ScoreOptions;
use crate::problem::pairing::Pairing;
use crate::problem::scores::Scores;
use crate::runtime::on::On;
use crate::runtime::swap::Swap;
use crate::tokens::format::{Format, ScorableWith};
use crate::tokens::layout::TokenLayout;

impl PreparedScore {
    /// The call that scores these handles on a queue of `device`, checked.
    pub(crate) fn command<'a, Q: ScorableWith<D>, D: Format>(
        &'a self,
        device: &Device,
        queries: &'a DeviceTokens<Q>,
        documents: &'a DeviceTokens<D>,
        scores: &'a DeviceScores,
    ) -> Result<Command<'a>> {
        self.check_call(device, queries, documents, scores)?;
        let call = match (&self.inner, &scores.inner) {
            (On::Cpu(()), On::Cpu(room)) => on_cpu(CpuScore::new(queries, documents, self, room)?),
            (On::Cuda(work), On::Cuda(outputs)) => {
                let tokens = [queries.cuda_tokens()?, documents.cuda_tokens()?];
                On::Cuda(CudaCommand::Score { work, tokens, outputs })
            }
            _ => return Err(scores.wrong_device(device)),
        };
        let written = self.provenance().map(|provenance| (&scores.provenance, provenance));
        Ok(Command { call, written })
    }
}

/// A call of the CPU engine with everything that it uses.
struct CpuScore<Q: Format, D: Format> {
    layouts: [Arc<TokenLayout>; 2],
    queries: Arc<HostTokens<Q>>,
    documents: Arc<HostTokens<D>>,
    pairing: Arc<Pairing>,
    options: ScoreOptions,
    scores: Arc<Swap<Scores>>,
}

impl<Q: Format, D: Format> CpuScore<Q, D> {
    /// The handles and scores must be of the work; [`PreparedScore::check_call`] checks them.
    fn new(
        queries: &DeviceTokens<Q>,
        documents: &DeviceTokens<D>,
        work: &PreparedScore,
        scores: &Arc<Swap<Scores>>,
    ) -> Result<CpuScore<Q, D>> {
        Ok(CpuScore {
            layouts: [queries.layout.clone(), documents.layout.clone()],
            queries: queries.host_tokens()?.clone(),
            documents: documents.host_tokens()?.clone(),
            pairing: work.pairing.clone(),
            options: work.options.clone(),
            scores: scores.clone(),
        })
    }
}

impl<Q: Format, D: Format> CpuCall for CpuScore<Q, D> {
    fn run(&self) -> Result<()> {
        let [queries, documents] = &self.layouts;
        let problem = Problem::new(queries, documents, &self.pairing)?;
        let (queries, documents) = (self.queries.matrix(), self.documents.matrix());
        let found = cpu::score(&problem, queries, documents, &self.options)?;
        self.scores.set(found);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;
    use crate::ops::queue::Queue;
    use crate::problem::Problem;
    use crate::problem::options::ScoreOptions;
    use crate::problem::outputs::OutputShape;
    use crate::problem::pairing::Pairing;
    use crate::tokens::Tokens;
    use crate::tokens::layout::TokenLayout;

    const DATA: [f32; 8] = [1.0, 0.0, 0.0, 1.0, 0.5, 0.5, -1.0, 2.0];

    fn options() -> ScoreOptions {
        ScoreOptions { winners: true, token_scores: true, ..ScoreOptions::default() }
    }

    #[test]
    fn streams_of_the_cpu_give_what_a_synchronous_call_gives() {
        let device = Device::cpu();
        let queries = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        let documents = device.upload(&Tokens::padded(&DATA, 1, 4, 2).unwrap()).unwrap();
        let pairing = Pairing::cross();
        let work = device.prepare(&queries, &documents, &pairing, &options()).unwrap();
        let mut scores = work.new_scores().unwrap();
        assert_eq!(scores.read().unwrap().values(), [0.0, 0.0]);
        let mut stream = device.stream().unwrap();
        let (mut start, mut end) = (device.event().unwrap(), device.event().unwrap());
        stream.record(&mut start).unwrap();
        stream.score_into(&queries, &documents, &work, &mut scores).unwrap();
        stream.record(&mut end).unwrap();
        stream.synchronize().unwrap();
        assert!(end.elapsed_ms(&start).unwrap() >= 0.0);
        let expected = device.score_with(&queries, &documents, &pairing, &options()).unwrap();
        assert_eq!(scores.read().unwrap(), expected);
        assert_eq!((scores.address(), scores.winner_bytes()), (None, 2));
        assert_eq!([1, 2].map(|query| expected.row(query)), [Some(&expected.values()[1..]), None]);
    }

    #[test]
    fn work_takes_only_what_it_was_prepared_for() {
        let device = Device::cpu();
        let queries = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        let documents = device.upload(&Tokens::padded(&DATA, 1, 4, 2).unwrap()).unwrap();
        let pairing = Pairing::cross();
        let work = device.prepare(&queries, &documents, &pairing, &options()).unwrap();
        let mut scores = work.new_scores().unwrap();
        let mut stream = device.stream().unwrap();
        let shape_error = |result: Result<()>, expected: &str| match result {
            Err(Error::Shape { argument, .. }) => assert_eq!(argument, expected),
            other => panic!("{other:?} instead of a shape error for {expected}"),
        };
        shape_error(stream.score_into(&documents, &documents, &work, &mut scores), "queries");
        shape_error(stream.score_into(&queries, &queries, &work, &mut scores), "documents");
        // Equal layouts are as good as the same one.
        let same = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        stream.score_into(&same, &documents, &work, &mut scores).unwrap();

        let plain =
            device.prepare(&queries, &documents, &pairing, &ScoreOptions::default()).unwrap();
        let mut plain_scores = plain.new_scores().unwrap();
        shape_error(stream.score_into(&queries, &documents, &work, &mut plain_scores), "scores");

        let half = [half::f16::ONE; 8];
        let half_queries = device.upload(&Tokens::padded(&half, 2, 2, 2).unwrap()).unwrap();
        let half_documents = device.upload(&Tokens::padded(&half, 1, 4, 2).unwrap()).unwrap();
        shape_error(
            stream.score_into(&half_queries, &half_documents, &work, &mut scores),
            "queries",
        );
    }

    #[test]
    fn the_read_roof_is_a_cuda_devices() {
        let device = Device::cpu();
        let tokens = device.upload(&Tokens::padded(&DATA, 2, 2, 2).unwrap()).unwrap();
        let read = device.stream().unwrap().read_roof(&tokens, 1);
        assert!(matches!(read, Err(Error::Unsupported { .. })));
    }

    #[test]
    fn the_time_between_unrecorded_events_is_an_error() {
        let device = Device::cpu();
        let (start, mut end) = (device.event().unwrap(), device.event().unwrap());
        device.stream().unwrap().record(&mut end).unwrap();
        assert!(matches!(end.elapsed_ms(&start), Err(Error::Unsupported { .. })));
    }

    #[test]
    fn winners_take_two_bytes_below_65535_tokens() {
        let pairing = Pairing::cross();
        let queries = TokenLayout::padded(1, 1, 1).unwrap();
        for (len, bytes) in [(65534, 2), (65535, 4), (65536, 4)] {
            let documents = TokenLayout::padded(1, len, 1).unwrap();
            let problem = Problem::new(&queries, &documents, &pairing).unwrap();
            assert_eq!(OutputShape::new(&problem, &options()).winner_bytes, bytes);
        }
    }
}
