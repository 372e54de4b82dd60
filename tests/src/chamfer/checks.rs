//! Runs cases, and compares what is found with a comparison of all points.

use maxsim::chamfer::{
    Chamfer, ChamferGrad, ChamferGradients, DeviceChamfer, Metric, Neighbours, PointReduction,
};
use maxsim::format::{Element, with_element};
use maxsim::stream::Queue;
use maxsim::training::{GradientType, Gradients};
use maxsim::{Device, Tokens};

use super::{CloudCase, Clouds, Lie, clouds};
use crate::gpu::text;
use crate::gradients::all_devices;
use crate::suite::Suite;

/// Neighbours of a side's points, as the library computes distances, but without any search.
fn nearest<T: Element>(case: &CloudCase, sides: [&Clouds<T>; 2]) -> Neighbours {
    let [own, other] = sides;
    let mut nearest = Neighbours::default();
    for cloud in 0..own.lens.len() {
        for point in 0..own.lens[cloud] as usize {
            let mut best: Option<(f32, usize)> = None;
            let row = own.row(cloud, point);
            for neighbour in 0..other.lens[cloud] as usize {
                let Some((row, at)) = row.zip(other.row(cloud, neighbour)) else { continue };
                let differences = own.values(row).zip(other.values(at)).map(|(p, q)| p - q);
                let distance = differences.fold(0.0f32, |sum, x| match case.metric {
                    Metric::L1 => sum + x.abs(),
                    _ => x.mul_add(x, sum),
                });
                let is_nearer = |(least, _): (f32, usize)| {
                    distance < least || distance.is_nan() && !least.is_nan()
                };
                if best.is_none_or(is_nearer) {
                    best = Some((distance, neighbour));
                }
            }
            let (distance, neighbour) = best.map_or((0.0, -1), |(d, at)| (d, at as i32));
            nearest.distances.push(distance);
            nearest.indices.push(neighbour);
        }
    }
    nearest
}

/// A point of a direction: its side, its pair, its row and place, its neighbour's row and distance.
struct Term {
    side: usize,
    pair: usize,
    row: usize,
    place: usize,
    neighbour: usize,
    distance: f32,
}

/// Every point that has a neighbour, pair after pair.
fn terms<T: Element>(sides: [&Clouds<T>; 2], found: &Chamfer) -> Vec<Term> {
    let mut terms = Vec::new();
    for (side, nearest) in [Some(found.x()), found.y()].into_iter().flatten().enumerate() {
        let mut place = 0;
        for pair in 0..sides[side].lens.len() {
            for point in 0..sides[side].lens[pair] {
                if nearest.indices[place] >= 0 {
                    terms.push(Term {
                        side,
                        pair,
                        row: (sides[side].starts[pair] + point) as usize,
                        place,
                        neighbour: (sides[1 - side].starts[pair]
                            + i64::from(nearest.indices[place]))
                            as usize,
                        distance: nearest.distances[place],
                    });
                }
                place += 1;
            }
        }
    }
    terms
}

/// What a pair's value is made of: of each direction the sum, the points, and the farthest's place.
#[derive(Clone, Copy, Default)]
struct Reduced {
    sum: f64,
    n: usize,
    most: f32,
    farthest: usize,
}

fn reduced(terms: &[Term], n_pairs: usize) -> Vec<[Reduced; 2]> {
    let mut pairs = vec![[Reduced::default(); 2]; n_pairs];
    for term in terms {
        let Reduced { sum, n, most, farthest } = &mut pairs[term.pair][term.side];
        let is_more = term.distance > *most || term.distance.is_nan() && !most.is_nan();
        if *n == 0 || is_more {
            (*most, *farthest) = (term.distance, term.place);
        }
        *sum += f64::from(term.distance);
        *n += 1;
    }
    pairs
}

/// Runs a case on a device and compares everything with what it must be.
fn check(device: &Device, case: &CloudCase) -> Result<(), String> {
    with_element!(case.element, T => check_as::<T>(device, case))
}

fn check_as<T: Element>(device: &Device, case: &CloudCase) -> Result<(), String> {
    let [x, y] = clouds::<T>(case);
    let tokens = [x.tokens().map_err(text)?, y.tokens().map_err(text)?];
    let options = case.options();
    let found = device.chamfer(&tokens[0], &tokens[1], &options).map_err(text)?;
    same(&nearest(case, [&x, &y]), found.x()).map_err(|why| format!("x {why}"))?;
    match found.y() {
        None if case.single_direction => {}
        Some(found) if !case.single_direction => {
            same(&nearest(case, [&y, &x]), found).map_err(|why| format!("y {why}"))?;
        }
        _ => return Err("another direction than asked for".into()),
    }
    let terms = terms([&x, &y], &found);
    let reduced = reduced(&terms, case.lens.len());
    check_values(case, &found, &reduced)?;
    let tokens = [&tokens[0], &tokens[1]];
    check_gradients(device, case, [&x, &y], tokens, &found, &terms, &reduced)?;
    if case.seed.is_multiple_of(STREAM_TURNS) {
        check_streamed(device, case, tokens, &found).map_err(|why| format!("streamed: {why}"))?;
    }
    Ok(())
}

/// Runs a case on all devices.
///
/// # Errors
/// What differs.
pub fn check_all(suite: &Suite, case: &CloudCase) -> Result<(), String> {
    for device in all_devices() {
        check(&device, case).map_err(|why| format!("{device}: {why}"))?;
        suite.count(&device.to_string());
    }
    Ok(())
}

/// Number of cases of which one goes through a stream and a graph too.
const STREAM_TURNS: u64 = 3;

/// Whether a device refuses gradients: those of clouds that share rows.
fn is_refused<R>(device: &Device, case: &CloudCase, result: &maxsim::Result<R>) -> bool {
    let may_refuse = device.ordinal().is_some() && case.lie == Lie::Overlapping;
    may_refuse && matches!(result, Err(maxsim::Error::Unsupported { .. }))
}

/// The same call in stream order, enqueued and in a graph, has the same bits every time.
fn check_streamed<T: Element>(
    device: &Device,
    case: &CloudCase,
    [x, y]: [&Tokens<'_, T>; 2],
    found: &Chamfer,
) -> Result<(), String> {
    let [own_x, own_y] = [device.upload(x).map_err(text)?, device.upload(y).map_err(text)?];
    let work = device.prepare_chamfer(&own_x, &own_y, &case.options()).map_err(text)?;
    let mut streamed = work.new_found().map_err(text)?;
    let mut stream = device.stream().map_err(text)?;
    let compare = |streamed: &DeviceChamfer| {
        let again = streamed.read().map_err(text)?;
        let bits = |found: &Chamfer| {
            let sides = [Some(found.x()), found.y()].map(|side| {
                let side = side?;
                let distances: Vec<u32> = side.distances.iter().map(|x| x.to_bits()).collect();
                Some((distances, side.indices.clone()))
            });
            (found.values().iter().map(|x| x.to_bits()).collect::<Vec<_>>(), sides)
        };
        let is_same = bits(&again) == bits(found);
        is_same.then_some(()).ok_or("another result than at once".to_string())
    };
    for _ in 0..2 {
        stream.chamfer_into(&own_x, &own_y, &work, &mut streamed).map_err(text)?;
        compare(&streamed)?;
    }
    if case.reduction == PointReduction::None {
        return Ok(());
    }
    let values: Vec<f32> = (0..case.lens.len()).map(number).collect();
    let grad = work.upload_grad(&values).map_err(text)?;
    let mut gradients = work.new_gradients(GradientType::F32).map_err(text)?;
    let captured = device.capture(|capture| {
        capture.chamfer_into(&own_x, &own_y, &work, &mut streamed)?;
        capture.chamfer_backward(&own_x, &own_y, &work, streamed.with_grad(&grad), &mut gradients)
    });
    if is_refused(device, case, &captured) {
        return Ok(());
    }
    let mut step = captured.map_err(text)?;
    let expected =
        device.chamfer_backward(x, y, found, ChamferGrad::Values(&values)).map_err(text)?;
    // Which NaN one is differs from call to call in WebAssembly, and nowhere else.
    let is_any = |x: f32| cfg!(target_family = "wasm") && x.is_nan();
    let bits = |values: &[f32]| {
        let bits = |&x: &f32| if is_any(x) { f32::NAN.to_bits() } else { x.to_bits() };
        values.iter().map(bits).collect::<Vec<_>>()
    };
    for _ in 0..2 {
        step.launch(&mut stream).map_err(text)?;
        compare(&streamed)?;
        let Gradients { queries, documents, .. } = gradients.read().map_err(text)?;
        if (bits(&queries), bits(&documents)) != (bits(&expected.x), bits(&expected.y)) {
            return Err("other gradients than at once".into());
        }
    }
    Ok(())
}

/// Some number.
fn number(i: usize) -> f32 {
    ((i * 37 + 11) % 29) as f32 / 7.0 - 2.0
}

/// Checks that neighbours are the same, and distances bit for bit.
///
/// # Errors
/// What differs first.
pub fn same(expected: &Neighbours, found: &Neighbours) -> Result<(), String> {
    let (a, b) = (&expected.distances, &found.distances);
    if a.len() != b.len() || expected.indices.len() != found.indices.len() {
        return Err(format!("has {} points, not {}", b.len(), a.len()));
    }
    for i in 0..a.len() {
        let is_same = a[i].to_bits() == b[i].to_bits() || a[i].is_nan() && b[i].is_nan();
        if !is_same || expected.indices[i] != found.indices[i] {
            return Err(format!(
                "point {i}: expected {} at {}, found {} at {}",
                expected.indices[i], a[i], found.indices[i], b[i]
            ));
        }
    }
    Ok(())
}

fn weight(case: &CloudCase, pair: usize) -> f64 {
    case.options().weights.map_or(1.0, |weights| weights[pair].into())
}

fn check_values(case: &CloudCase, found: &Chamfer, reduced: &[[Reduced; 2]]) -> Result<(), String> {
    if case.reduction == PointReduction::None {
        let is_none = found.values().is_empty();
        return is_none.then_some(()).ok_or("values of distances that were not reduced".into());
    }
    for (pair, sides) in reduced.iter().enumerate() {
        let of = |side: &Reduced| match case.reduction {
            PointReduction::Mean => side.sum / side.n.max(1) as f64,
            PointReduction::Max => side.most.into(),
            _ => side.sum,
        };
        let expected = (of(&sides[0]) + of(&sides[1])) * weight(case, pair);
        let (value, rounded) = (found.values()[pair], expected as f32);
        let error = (f64::from(value) - expected).abs();
        let is_same = value == rounded || value.is_nan() && rounded.is_nan();
        if !is_same && (error.is_nan() || error > 1e-6 * expected.abs()) {
            return Err(format!("pair {pair}: expected {expected}, found {value}"));
        }
    }
    Ok(())
}

/// Compares the gradients of values, or of distances, with sums in f64.
fn check_gradients<T: Element>(
    device: &Device,
    case: &CloudCase,
    clouds: [&Clouds<T>; 2],
    tokens: [&Tokens<'_, T>; 2],
    found: &Chamfer,
    terms: &[Term],
    reduced: &[[Reduced; 2]],
) -> Result<(), String> {
    let of_values: Vec<f32> = (0..case.lens.len()).map(number).collect();
    let n_points =
        |nearest: Option<&Neighbours>| nearest.map_or(0, |nearest| nearest.distances.len());
    let of_points = [Some(found.x()), found.y()]
        .map(|side| (0..n_points(side)).map(number).collect::<Vec<_>>());
    let of_values = (case.reduction != PointReduction::None).then_some(&of_values[..]);
    let grad = match of_values {
        Some(values) => ChamferGrad::Values(values),
        None => ChamferGrad::Distances(&of_points[0], &of_points[1]),
    };
    let [x, y] = tokens;
    let gradients = device.chamfer_backward(x, y, found, grad);
    if is_refused(device, case, &gradients) {
        return Ok(());
    }
    let gradients = gradients.map_err(text)?;
    let again = device.chamfer_backward(x, y, found, grad).map_err(text)?;
    let bits = |gradients: &ChamferGradients| {
        [&gradients.x, &gradients.y]
            .map(|side| side.iter().map(|x| x.to_bits()).collect::<Vec<_>>())
    };
    if bits(&gradients) != bits(&again) {
        return Err("gradients differ from call to call".into());
    }
    let factor = |term: &Term| {
        let side = &reduced[term.pair][term.side];
        let Some(values) = of_values else { return Some(number(term.place).into()) };
        let grad = f64::from(values[term.pair]) * weight(case, term.pair);
        match case.reduction {
            PointReduction::Mean => Some(grad / side.n as f64),
            PointReduction::Max => (side.farthest == term.place).then_some(grad),
            _ => Some(grad),
        }
    };
    // Sums and sums of magnitudes.
    let mut expected = clouds.map(|side| vec![(0.0f64, 0.0f64); side.elements.len()]);
    for term in terms {
        let Some(mut factor) = factor(term) else { continue };
        if !term.distance.is_finite() {
            factor = f64::NAN;
        }
        let (from, to) = (term.side, 1 - term.side);
        let coordinates = clouds[from].values(term.row).zip(clouds[to].values(term.neighbour));
        for (k, (p, q)) in coordinates.enumerate() {
            let difference = p - q;
            let slope = f64::from(match case.metric {
                Metric::L1 if difference == 0.0 || difference.is_nan() => difference,
                Metric::L1 => difference.signum(),
                // It may overflow.
                _ => 2.0 * difference,
            });
            for (side, row, sign) in [(from, term.row, 1.0), (to, term.neighbour, -1.0)] {
                let (sum, magnitude) = &mut expected[side][row * case.dim + k];
                *sum += sign * factor * slope;
                *magnitude += (factor * slope).abs();
            }
        }
    }
    // On a GPU terms are whole numbers of units of the largest there may be.
    let magnitudes = expected.iter().flatten().map(|&(_, magnitude)| magnitude);
    let most = magnitudes.filter(|x| x.is_finite()).fold(0.0, f64::max);
    let unit = if device.ordinal().is_some() { most * 2f64.powi(-48) } else { 0.0 };
    for (side, found) in [&gradients.x, &gradients.y].into_iter().enumerate() {
        compare(&expected[side], found, terms.len(), unit)
            .map_err(|why| format!("∂{side} {why}"))?;
    }
    Ok(())
}

fn compare(expected: &[(f64, f64)], found: &[f32], n: usize, unit: f64) -> Result<(), String> {
    if expected.len() != found.len() {
        return Err(format!("has {} elements", found.len()));
    }
    for (i, (&(sum, magnitude), &found)) in expected.iter().zip(found).enumerate() {
        let error = (f64::from(found) - sum).abs();
        let allowed = (n + 4) as f64 * (2f64.powi(-23) * magnitude + unit);
        let is_far = magnitude > f64::from(f32::MAX) / 4.0 && !found.is_finite();
        let are_nan = sum.is_nan() && found.is_nan();
        if !(error <= allowed || are_nan || is_far || f64::from(found) == sum) {
            return Err(format!("element {i}: expected {sum} ± {allowed}, found {found}"));
        }
    }
    Ok(())
}
