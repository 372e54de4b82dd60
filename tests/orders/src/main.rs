//! Runs what the library shares between threads without a lock in every order that threads and
//! memory may have, as [`loom`] finds them: `cargo run` in this folder. It ends with a panic where
//! one of them goes wrong.

mod list;
mod memory;

/// What is checked, and the function that does it and gives the number of orders.
type Model = (&'static str, fn() -> usize);

fn main() {
    for (name, model) in list::MODELS.iter().chain(memory::MODELS) {
        let start = std::time::Instant::now();
        let n_orders = model();
        println!("{name}: {n_orders} orders, {:.1} s", start.elapsed().as_secs_f64());
    }
}

/// Runs a model in all orders with at most so many switches that no thread asked for; how many
/// those were.
fn in_all_orders(n_switches: usize, model: impl Fn() + Send + Sync + 'static) -> usize {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering};

    let n_orders = Arc::new(AtomicUsize::new(0));
    let counted = n_orders.clone();
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(n_switches);
    builder.check(move || {
        counted.fetch_add(1, Ordering::Relaxed);
        model();
    });
    n_orders.load(Ordering::Relaxed)
}
