//! Circles of imports between rooms.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

/// Imports between rooms, with one place where each happens.
#[derive(Default)]
pub struct Graph {
    edges: BTreeMap<String, BTreeMap<String, String>>,
}

/// Rooms of which each is reached from each other.
#[derive(Debug)]
pub struct Circle {
    pub n_rooms: usize,
    /// A shortest way from one of them back to it, with the place of each import.
    pub path: String,
}

impl Graph {
    /// Adds an import and the place where it stands.
    pub fn add(&mut self, from: &str, to: &str, place: String) {
        let edges = self.edges.entry(from.to_string()).or_default();
        edges.entry(to.to_string()).or_insert(place);
    }

    /// The circles, in the order of their first rooms.
    pub fn circles(&self) -> Vec<Circle> {
        let reached: BTreeMap<&str, BTreeSet<&str>> =
            self.edges.keys().map(|room| (room.as_str(), self.reached(room))).collect();
        let mut done = BTreeSet::new();
        let mut circles = Vec::new();
        for (&room, others) in &reached {
            if !others.contains(room) || !done.insert(room) {
                continue;
            }
            let is_back = |other: &&&str| reached.get(**other).is_some_and(|x| x.contains(room));
            let rooms: Vec<&str> = others.iter().filter(is_back).copied().collect();
            done.extend(&rooms);
            circles.push(Circle { n_rooms: rooms.len(), path: self.way_back(room) });
        }
        circles
    }

    /// Rooms that a room imports, and those that they import, and so on.
    fn reached(&self, room: &str) -> BTreeSet<&str> {
        let mut reached = BTreeSet::new();
        let mut open = vec![room];
        while let Some(room) = open.pop() {
            for to in self.edges.get(room).into_iter().flat_map(BTreeMap::keys) {
                if reached.insert(to.as_str()) {
                    open.push(to);
                }
            }
        }
        reached
    }

    /// A shortest way from a room back to it.
    fn way_back(&self, start: &str) -> String {
        let mut open = VecDeque::from([(start, start.to_string())]);
        let mut seen = BTreeSet::new();
        while let Some((room, way)) = open.pop_front() {
            for (to, place) in self.edges.get(room).into_iter().flatten() {
                let way = format!("{way} → {to} ({place})");
                if to == start {
                    return way;
                }
                if seen.insert(to) {
                    open.push_back((to, way));
                }
            }
        }
        start.to_string()
    }
}
