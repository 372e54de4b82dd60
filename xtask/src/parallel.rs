//! Work on all cores.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

/// `f` of every item, on as many threads as there are cores; results are in the order of items.
pub fn map<T: Sync, R: Send>(items: &[T], f: impl Fn(&T) -> R + Sync) -> Vec<R> {
    let next = AtomicUsize::new(0);
    let done = Mutex::new(Vec::with_capacity(items.len()));
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    let Some(item) = items.get(i) else { break };
                    let result = f(item);
                    done.lock().unwrap_or_else(|poisoned| poisoned.into_inner()).push((i, result));
                }
            });
        }
    });
    let mut done = done.into_inner().unwrap_or_else(|poisoned| poisoned.into_inner());
    done.sort_by_key(|(i, _)| *i);
    done.into_iter().map(|(_, result)| result).collect()
}

#[cfg(test)]
mod tests {
    #[test]
    fn results_are_in_the_order_of_items() {
        let items: Vec<usize> = (0..100).collect();
        let squares: Vec<usize> = items.iter().map(|i| i * i).collect();
        assert_eq!(super::map(&items, |i| i * i), squares);
        assert!(super::map(&[], |i: &usize| *i).is_empty());
    }
}
