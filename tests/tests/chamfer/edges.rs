//! What is refused, and what the smallest clouds give.

use maxsim::chamfer::{ChamferGrad, ChamferOptions, PointReduction};
use maxsim::{Device, Error, Interrupt, Tokens};
use maxsim_tests::engines::cuda_devices;
use maxsim_tests::gradients::all_devices;

fn cloud(points: &[f32]) -> Tokens<'_, f32> {
    Tokens::padded(points, 1, points.len(), 1).unwrap()
}

#[test]
fn clouds_that_do_not_go_together_are_refused() {
    let device = Device::cpu();
    let options = ChamferOptions::default();
    let numbers = [0.0f32; 12];
    let two = Tokens::padded(&numbers, 2, 3, 2).unwrap();
    let three = Tokens::padded(&numbers, 3, 2, 2).unwrap();
    let flat = Tokens::padded(&numbers, 2, 6, 1).unwrap();
    let shape = |result: maxsim::Result<_>, of: &str| match result.map(drop) {
        Err(Error::Shape { argument, .. }) => assert_eq!(argument, of),
        other => panic!("{other:?}"),
    };
    shape(device.chamfer(&two, &three, &options), "y");
    shape(device.chamfer(&two, &flat, &options), "y");
    shape(device.chamfer(&two, &two, &options.clone().weights([1.0])), "weights");
    let none = ChamferOptions::default().reduction(PointReduction::None);
    let refused = device.chamfer(&two, &two, &none.clone().weights([1.0, 2.0]));
    assert!(matches!(refused, Err(Error::Unsupported { .. })));

    let found = device.chamfer(&two, &two, &options).unwrap();
    let backward = |x: &Tokens<'_, f32>, grad: ChamferGrad<'_>| {
        device.chamfer_backward(x, &two, &found, grad).map(drop)
    };
    assert!(backward(&two, ChamferGrad::Values(&[1.0, 1.0])).is_ok());
    let short = Tokens::packed(&numbers, 2, &[0, 3, 5]).unwrap();
    assert!(matches!(
        backward(&short, ChamferGrad::Values(&[1.0, 1.0])),
        Err(Error::Shape { argument: "x", .. })
    ));
    for grad in [
        ChamferGrad::Values(&[1.0]),
        ChamferGrad::Distances(&[0.0; 6], &[0.0; 5]),
        ChamferGrad::Distances(&[0.0; 7], &[0.0; 6]),
    ] {
        assert!(matches!(backward(&two, grad), Err(Error::Shape { .. })));
    }
    let found = device.chamfer(&two, &two, &none).unwrap();
    let grad = ChamferGrad::Values(&[]);
    let refused = device.chamfer_backward(&two, &two, &found, grad);
    assert!(matches!(refused, Err(Error::Unsupported { .. })));
    // Normals lie as points do.
    assert!(matches!(found.normals(&two, &flat, false), Err(Error::Shape { .. })));
}

#[test]
fn empty_clouds_add_nothing_and_have_no_gradient() {
    for device in all_devices() {
        empty_clouds(&device);
    }
}

fn empty_clouds(device: &Device) {
    let x = Tokens::packed(&[1.0f32, 5.0], 1, &[0, 2, 2, 2]).unwrap();
    let y = Tokens::packed(&[4.0f32], 1, &[0, 0, 1, 1]).unwrap();
    let found = device.chamfer(&x, &y, &ChamferOptions::default()).unwrap();
    assert_eq!(found.values(), [0.0; 3]);
    assert_eq!((&found.x().distances[..], &found.x().indices[..]), (&[0.0; 2][..], &[-1; 2][..]));
    let grad = ChamferGrad::Values(&[f32::NAN; 3]);
    let gradients = device.chamfer_backward(&x, &y, &found, grad).unwrap();
    assert_eq!((gradients.x, gradients.y), (vec![0.0; 2], vec![0.0]));
    // No clouds at all.
    let none = Tokens::padded(&[0.0f32; 0], 0, 0, 3).unwrap();
    let found = device.chamfer(&none, &none, &ChamferOptions::default()).unwrap();
    assert!(found.values().is_empty() && found.x().distances.is_empty());
}

/// Masked points are none's neighbour, whatever they are.
#[test]
fn masked_points_do_not_show() {
    for device in all_devices() {
        masked_points(&device);
    }
}

fn masked_points(device: &Device) {
    let x = [0.0f32, f32::NAN, 3.0];
    let x = cloud(&x).with_mask(&[1, 0, 1][..]).unwrap();
    let y = [f32::INFINITY, 1.0, 3.0];
    let y = cloud(&y).with_mask(&[0, 1, 1][..]).unwrap();
    let found = device.chamfer(&x, &y, &ChamferOptions::default()).unwrap();
    assert_eq!(found.x().indices, [1, -1, 2]);
    assert_eq!(found.y().unwrap().indices, [-1, 0, 2]);
    assert_eq!(found.values(), [1.0]);
    let grad = ChamferGrad::Values(&[1.0]);
    let gradients = device.chamfer_backward(&x, &y, &found, grad).unwrap();
    assert_eq!((gradients.x, gradients.y), (vec![-2.0, 0.0, 0.0], vec![0.0, 2.0, 0.0]));
}

/// NaN shows, and infinity is far away.
#[test]
fn special_points_on_every_device() {
    for device in all_devices() {
        special_points(&device);
    }
}

fn special_points(device: &Device) {
    let found = |x: &[f32], y: &[f32]| {
        device.chamfer(&cloud(x), &cloud(y), &ChamferOptions::default()).unwrap()
    };
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let of = found(&[1.0, 2.0], &[0.0, nan, 7.0, nan]);
    assert!(of.x().distances.iter().all(|x| x.is_nan()) && of.x().indices == [1, 1]);
    assert!(of.values()[0].is_nan());
    let y = of.y().unwrap();
    assert!(y.distances[0] == 1.0 && y.distances[1].is_nan() && y.distances[2] == 25.0);
    // Infinity is farther than all, nearer than nothing, and at no distance from itself.
    let of = found(&[1.0, inf], &[-inf, inf, 2.0]);
    assert_eq!((of.x().distances[0], of.x().indices[0]), (1.0, 2));
    assert!(of.x().distances[1].is_nan() && of.x().indices[1] == 1);
    let of = found(&[1.0], &[inf, -inf]);
    assert_eq!((of.x().distances[0], of.x().indices[0]), (inf, 0));
    // Squares of finite differences overflow: all are equally far.
    let of = found(&[3e38, -3e38], &[0.0, 1.0]);
    assert_eq!((&of.x().distances[..], &of.x().indices[..]), (&[inf; 2][..], &[0, 0][..]));
}

#[test]
fn a_call_ends_when_asked_to() {
    let x = [0.0f32, 1.0];
    let enough = Interrupt::default();
    enough.raise();
    let call = || Device::cpu().chamfer(&cloud(&x), &cloud(&x), &ChamferOptions::default());
    assert!(matches!(enough.heeded_by(call), Err(Error::Interrupted)));
}

/// A GPU says what it does not take.
#[test]
fn what_only_the_cpu_takes() {
    for device in cuda_devices() {
        let points = [0.0f32; 8];
        let shared = Tokens::scattered(&points, 1, &[0, 3], &[5, 4]).unwrap();
        let found = device.chamfer(&shared, &shared, &ChamferOptions::default()).unwrap();
        let grad = ChamferGrad::Values(&[1.0, 1.0]);
        let refused = device.chamfer_backward(&shared, &shared, &found, grad);
        assert!(matches!(refused, Err(Error::Unsupported { .. })));
    }
}

/// Work, results and gradients of other clouds are refused.
#[test]
fn queues_take_what_was_prepared() {
    use maxsim::stream::Queue;
    use maxsim::training::GradientType;
    for device in all_devices() {
        let options = ChamferOptions::default();
        let upload = |n| device.upload(&cloud(&[0.0f32, 1.0, 2.0][..n])).unwrap();
        let (two, three) = (upload(2), upload(3));
        let work = device.prepare_chamfer(&two, &two, &options).unwrap();
        let other = device.prepare_chamfer(&two, &three, &options).unwrap();
        let mut found = work.new_found().unwrap();
        let mut stream = device.stream().unwrap();
        let shape = |result| assert!(matches!(result, Err(Error::Shape { .. })), "{result:?}");
        shape(stream.chamfer_into(&two, &three, &work, &mut found));
        shape(stream.chamfer_into(&two, &three, &other, &mut found));
        let wide = device.upload(&cloud(&[0.0f32]).items(0..1).unwrap()).unwrap();
        shape(stream.chamfer_into(&wide, &two, &work, &mut found));
        shape(work.upload_grad(&[1.0, 2.0]).map(drop));
        let grad = work.upload_grad(&[1.0]).unwrap();
        let mut gradients = other.new_gradients(GradientType::F32).unwrap();
        shape(stream.chamfer_backward(&two, &two, &work, found.with_grad(&grad), &mut gradients));
        let none = ChamferOptions::default().reduction(PointReduction::None);
        let unreduced = device.prepare_chamfer(&two, &two, &none).unwrap();
        assert!(matches!(unreduced.upload_grad(&[]), Err(Error::Unsupported { .. })));
        shape(stream.chamfer_into(&two, &two, &unreduced, &mut found));
    }
}
