//! The engines of this machine, and one problem run on all of them.

use std::sync::OnceLock;

use maxsim::format::{Element, ElementType, Format, ScorableWith, with_element};
use maxsim::stream::Queue;
use maxsim::{Device, DeviceTokens, Error, Pairing, ScoreOptions, Scores, Tokens, TokensRef};
use maxsim_kernels::table::forward::{FORWARD, Variant};

use crate::agree;
use crate::case::{Case, Data, elements, tokens};
use crate::oracle::{Answer, maxsim};
use crate::suite::Suite;
use crate::values;

/// The CUDA devices that can run the kernels; empty without a GPU.
///
/// # Panics
/// Without one, when MAXSIM_REQUIRE_GPU=1.
pub fn cuda_devices() -> &'static [Device] {
    static DEVICES: OnceLock<Vec<Device>> = OnceLock::new();
    DEVICES.get_or_init(|| {
        let devices: Vec<Device> =
            Device::all().into_iter().filter(|device| device.ordinal().is_some()).collect();
        let required = std::env::var("MAXSIM_REQUIRE_GPU").is_ok_and(|v| v == "1");
        if let (true, true, Err(why)) = (required, devices.is_empty(), Device::cuda(0)) {
            panic!("MAXSIM_REQUIRE_GPU=1, but: {why}");
        }
        devices
    })
}

/// Checks that a stream, and a graph, give the scores of every query and every document that are
/// expected.
///
/// # Panics
/// Where they do not, or fail.
pub fn check_stream_and_graph<Q: ScorableWith<D>, D: Format>(
    device: &Device,
    queries: &DeviceTokens<Q>,
    documents: &DeviceTokens<D>,
    options: &ScoreOptions,
    expected: &Scores,
) {
    let work = device.prepare(queries, documents, &Pairing::cross(), options).expect("work");
    let mut scores = work.new_scores().expect("scores");
    let mut stream = device.stream().expect("a stream");
    stream.score_into(queries, documents, &work, &mut scores).expect("a call");
    assert_eq!(&scores.read().expect("scores"), expected);

    let mut scores = work.new_scores().expect("scores");
    let mut graph = device
        .capture(|capture| capture.score_into(queries, documents, &work, &mut scores))
        .expect("a graph");
    graph.launch(&mut stream).expect("a launch");
    assert_eq!(&scores.read().expect("scores"), expected);
}

/// Whether the device has the instructions of a row.
pub fn runs_row(device: &Device, row: &Variant) -> bool {
    device.limits().is_some_and(|limits| row.arch.runs_on(limits.capability))
}

/// A way to run a problem: the CPU, a device's own choice of kernel, or one row of the table.
#[derive(Clone, Debug)]
pub struct Engine {
    /// Device of the engine.
    pub device: Device,
    /// The row of the variant table to run; `None` = as the device likes.
    pub row: Option<&'static Variant>,
    /// Whether winners are asked for.
    pub winners: bool,
}

impl Engine {
    /// Every engine of this machine that may run this element type.
    pub fn all(element: ElementType) -> Vec<Engine> {
        let mut engines = Vec::new();
        for device in std::iter::once(&Device::cpu()).chain(cuda_devices()) {
            for winners in [false, true] {
                engines.push(Engine { device: device.clone(), row: None, winners });
            }
        }
        for device in cuda_devices() {
            for row in FORWARD.iter().filter(|row| row.operand == element) {
                // Rows that normalise and find winners serve calls of both kinds.
                for winners in [false, true] {
                    if winners == row.winners || row.normalizes() && row.winners {
                        engines.push(Engine { device: device.clone(), row: Some(row), winners });
                    }
                }
            }
        }
        engines
    }

    /// Every engine that can run a case.
    fn of(case: &Case) -> Vec<Engine> {
        let runs = |row: &Variant| row.normalizes() == case.normalize;
        let engines = Engine::all(case.element).into_iter();
        engines.filter(|engine| engine.row.is_none_or(runs)).collect()
    }

    /// Options to call the library with.
    pub fn options(&self, token_scores: bool) -> ScoreOptions {
        let kernel = self.row.map(|row| row.name.to_string());
        ScoreOptions::default()
            .winners(self.winners)
            .token_scores(token_scores)
            .allow_tf32(self.is_tf32())
            .normalize(self.normalizes())
            .kernel(kernel.as_deref())
    }

    /// Whether elements are rounded to TF32.
    pub fn is_tf32(&self) -> bool {
        self.row.is_some_and(|row| row.tf32)
    }

    /// Whether it is a row that normalises.
    pub fn normalizes(&self) -> bool {
        self.row.is_some_and(|row| row.normalizes())
    }

    /// The name in the record: device, then the kernel row or the way it was chosen.
    pub fn name(&self) -> String {
        match self.row {
            Some(row) if row.winners && !self.winners => {
                format!("{} {} without winners", self.device, row.name)
            }
            Some(row) => format!("{} {}", self.device, row.name),
            None if self.winners => format!("{} with winners", self.device),
            None => self.device.to_string(),
        }
    }
}

/// Runs a case on every engine that is eligible and compares each with the oracle.
pub fn check_case(suite: &Suite, case: &Case) -> Result<(), String> {
    check_on(suite, case, Engine::of(case))
}

/// As [`check_case`], on these rows of the variant table alone.
pub fn check_case_on_rows(
    suite: &Suite,
    case: &Case,
    runs: impl Fn(&Variant) -> bool,
) -> Result<(), String> {
    let mut engines = Engine::of(case);
    engines.retain(|engine| engine.row.is_none_or(&runs));
    for engine in &engines {
        if engine.row.is_some_and(|row| runs_row(&engine.device, row)) {
            suite.expect(&engine.name());
        }
    }
    check_on(suite, case, engines)
}

/// Number of kernels of which a case that is checked in turns meets one.
const TURNS: u64 = 4;

/// As [`check_case`], but the rows of the variant table take turns: for many random cases,
/// where each row still meets a quarter of them.
pub fn check_case_in_turns(suite: &Suite, case: &Case) -> Result<(), String> {
    let mut engines = Engine::of(case);
    let mut turn = case.seed;
    engines.retain(|engine| {
        turn = turn.wrapping_add(1);
        engine.row.is_none() || turn.is_multiple_of(TURNS)
    });
    check_on(suite, case, engines)
}

fn check_on(suite: &Suite, case: &Case, engines: Vec<Engine>) -> Result<(), String> {
    with_element!(case.element, T => check_as::<T>(suite, case, engines))
}

fn check_as<T: Element>(suite: &Suite, case: &Case, engines: Vec<Engine>) -> Result<(), String> {
    let mut problem = Problem::<T>::new(case);
    if case.angular {
        problem = problem.angular();
    }
    let rounded = engines.iter().any(Engine::is_tf32).then(|| problem.rounded_to_tf32());
    for engine in engines {
        let problem = match &rounded {
            Some(rounded) if engine.is_tf32() => rounded,
            _ => &problem,
        };
        let Case { document_splits, normalize, angular, token_scores, .. } = *case;
        let options = engine.options(token_scores).document_splits(document_splits);
        let options = options.normalize(normalize).angular(angular);
        let at = |what: String| format!("{}: {what}", engine.name());
        match problem.run(&engine.device, &options) {
            Ok(Some(found)) => {
                agree::check(&problem.data, &problem.expected, &options, &found).map_err(at)?;
                suite.count(&engine.name());
            }
            Ok(None) => {}
            Err(error) => return Err(at(error.to_string())),
        }
    }
    Ok(())
}

/// A case with its data and the oracle's answers.
#[derive(Debug)]
pub struct Problem<'a, T: Element> {
    case: &'a Case,
    /// The data.
    pub data: Data,
    /// The oracle's answer per score.
    pub expected: Vec<Answer>,
    elements: [Vec<T>; 2],
}

impl<'a, T: Element> Problem<'a, T> {
    /// Generates the data and asks the oracle.
    pub fn new(case: &'a Case) -> Self {
        let data = case.data();
        let expected =
            data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect();
        let elements = [elements(&data.queries), elements(&data.documents)];
        Problem { case, data, expected, elements }
    }

    /// Replaces the answers by those for elements rounded to TF32.
    pub fn rounded_to_tf32(&self) -> Self {
        let mut data = self.data.clone();
        for side in [&mut data.queries, &mut data.documents] {
            // No row rounds what it normalises.
            assert!(side.factors.is_none());
            side.values.iter_mut().for_each(|x| *x = values::rounded_to_tf32(*x));
        }
        let expected =
            data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect();
        Problem { case: self.case, data, expected, elements: self.elements.clone() }
    }

    /// Replaces the answers by those for rows that are normalised.
    pub fn normalized(&self) -> Self {
        let mut data = self.data.clone();
        data.queries = data.queries.normalized();
        data.documents = data.documents.normalized();
        data.exact = false;
        let expected =
            data.pairs.iter().map(|&(q, d)| maxsim(&data.queries, q, &data.documents, d)).collect();
        Problem { case: self.case, data, expected, elements: self.elements.clone() }
    }

    /// Replaces the answers by the angular ones of the same maxima.
    pub fn angular(self) -> Self {
        let Problem { case, data, expected, elements } = self;
        let answer = |(answer, &(q, d)): (Answer, &(usize, usize))| {
            let weight = |s| data.queries.weight(data.queries.items[q].start + s);
            answer.angular(weight, data.documents.tokens(d).next().is_some())
        };
        let expected = expected.into_iter().zip(&data.pairs).map(answer).collect();
        Problem { case, data, expected, elements }
    }

    /// Queries, documents and pairing as the library takes them.
    pub fn inputs(&self) -> Result<(Tokens<'_, T>, Tokens<'_, T>, Pairing), Error> {
        Ok((
            tokens(&self.case.queries, &self.data.queries, &self.elements[0])?,
            tokens(&self.case.documents, &self.data.documents, &self.elements[1])?,
            self.case.pairing(&self.data)?,
        ))
    }

    /// Scores on a device; `None` where the row named in `options` is not eligible.
    pub fn run(&self, device: &Device, options: &ScoreOptions) -> Result<Option<Scores>, Error> {
        self.call(device, |queries, documents, pairing| {
            let _ = match device.plan(queries, documents, pairing, options) {
                Err(Error::Unsupported { .. }) if options.kernel.is_some() => return Ok(None),
                plan => plan?,
            };
            device.score_with(queries, documents, pairing, options).map(Some)
        })
    }

    /// A call with queries, documents and pairing, uploaded where the case says so.
    pub fn call<R>(
        &self,
        device: &Device,
        call: impl FnOnce(TokensRef<'_, T>, TokensRef<'_, T>, &Pairing) -> Result<R, Error>,
    ) -> Result<R, Error> {
        let (queries, documents, pairing) = self.inputs()?;
        let upload =
            |tokens: &Tokens<'_, T>, yes: bool| -> Result<Option<DeviceTokens<T>>, Error> {
                yes.then(|| device.upload(tokens)).transpose()
            };
        let handles =
            (upload(&queries, self.case.upload[0])?, upload(&documents, self.case.upload[1])?);
        let queries = handles.0.as_ref().map_or(TokensRef::Host(&queries), TokensRef::Device);
        let documents = handles.1.as_ref().map_or(TokensRef::Host(&documents), TokensRef::Device);
        call(queries, documents, &pairing)
    }
}
