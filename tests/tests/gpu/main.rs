//! What only a GPU can show: repeats, sizes, threads, graphs, memory, and the time that work takes.

mod calls;
mod coarse;
mod consistent;
mod gradient_views;
mod gradients;
mod graph;
mod items;
mod items_of_codes;
mod weights;
