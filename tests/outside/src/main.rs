//! Scores one query against two documents on the best device there is.

use maxsim::{Device, Pairing, Tokens};

fn main() -> Result<(), maxsim::Error> {
    let queries = Tokens::padded(&[1.0f32, 0.0, 0.0, 1.0], 1, 2, 2)?;
    let documents = Tokens::packed(&[2.0f32, 0.0, 3.0, 4.0, -1.0, 5.0], 2, &[0i64, 1, 3])?;
    let device = Device::best();
    let scores = device.score(&queries, &documents, &Pairing::cross())?;
    println!("{device}: {:?}", scores.values());
    // max(2) + max(0), max(3, -1) + max(4, 5).
    assert_eq!(scores.values(), [2.0, 8.0]);
    match Device::cuda(0) {
        Ok(device) => println!("{device} is there"),
        Err(error) => println!("no GPU: {error}"),
    }
    Ok(())
}
