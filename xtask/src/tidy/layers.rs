//! The floor plan of both crates: which rooms there are, and which lies above which.

/// The layers of one crate or of one of its rooms, the lowest first.
///
/// A room is a module: a file, or a folder with all that is in it. Rooms of one layer are
/// siblings and do not import each other.
pub struct Layers {
    /// The module whose rooms these are, as `cuda`; empty for the crate. What its own file
    /// (`mod.rs`) has is above all of its rooms.
    pub of: &'static str,
    pub layers: &'static [&'static [&'static str]],
}

/// The layer tables of a crate.
pub struct Crate {
    /// The folder of sources, from the root of the workspace.
    pub root: &'static str,
    /// The table of the crate first, then those of rooms that have tables of their own.
    pub tables: &'static [Layers],
}

/// The crates that have rooms.
pub const CRATES: &[Crate] = &[HOST, KERNELS];

const HOST: Crate = Crate {
    root: "host/src/",
    tables: &[
        Layers {
            of: "",
            layers: &[
                &["error"],
                &["runtime"],
                &["linalg"],
                &["tokens"],
                &["residual"],
                &["files", "problem"],
                &["plan"],
                &["cpu", "cuda"],
                &["device"],
                &["ops"],
            ],
        },
        Layers {
            of: "cuda",
            layers: &[
                &["driver"],
                &["buffers"],
                &["calls"],
                &["forward"],
                &["backward"],
                &["chamfer", "loss", "top_k", "xtr"],
                &["graph", "search", "streaming"],
            ],
        },
    ],
};

const KERNELS: Crate = Crate {
    root: "kernels-gpu/src/",
    tables: &[
        Layers {
            of: "",
            layers: &[
                &["abi", "archive"],
                &["table"],
                &["ptx"],
                &["primitives"],
                &[
                    "sm80",
                    "sm90",
                    "backward",
                    "loss",
                    "quantize",
                    "rescore",
                    "search",
                    "combine_splits",
                    "segments",
                    "top_k",
                    "sum_partials",
                    "decoded_rows",
                    "bandwidth",
                    "xtr",
                ],
                &["projection", "chamfer"],
                &["entry"],
            ],
        },
        // Schedules lie above what they share, and know nothing of each other.
        Layers {
            of: "sm90",
            layers: &[
                &["kernel"],
                &["smem", "bitwise_max", "query_rows"],
                &["scheduler", "units"],
                &["producers", "scales", "consumer", "reduction"],
                &["compute", "epilogue", "prologue"],
                &["int8", "tf32x3"],
                &["persistent", "stream_k", "swap_ab", "contiguous", "residual"],
                &["collect"],
            ],
        },
    ],
};

/// How one module may use another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Relation {
    /// Both are in one room, or the import goes down.
    Allowed,
    /// One of the two is in no room.
    Unknown,
    /// The import goes up, or to a sibling.
    Broken { from: String, to: String, is_sibling: bool },
}

/// The room of a table that a module is in, and its layer; `None` where it is in none. The module
/// of the table itself is above all rooms, and so are the crate's re-exports.
fn room<'a>(table: &Layers, module: &'a [String]) -> Option<(&'a str, usize)> {
    let depth = depth(table.of);
    let Some(name) = module.get(depth) else { return Some((ABOVE, table.layers.len())) };
    let layer = table.layers.iter().position(|layer| layer.contains(&name.as_str()))?;
    Some((name, layer))
}

/// The file of a table's own module, which is above all of its rooms.
const ABOVE: &str = "mod.rs";

/// How many names a module's path has.
fn depth(path: &str) -> usize {
    if path.is_empty() { 0 } else { path.split("::").count() }
}

impl Crate {
    /// Whether a module is in a room of each table that applies to it.
    pub fn has_room(&self, module: &[String]) -> bool {
        self.applicable(module).all(|table| room(table, module).is_some())
    }

    /// The tables of a module and of the modules that it is in.
    fn applicable<'a>(&'a self, module: &[String]) -> impl Iterator<Item = &'a Layers> {
        let path = module.join("::");
        self.tables.iter().filter(move |table| is_within(&path, table.of))
    }

    /// How `from` may use what `to` defines.
    pub fn relation(&self, from: &[String], to: &[String]) -> Relation {
        for table in self.applicable(from) {
            if !is_within(&to.join("::"), table.of) {
                continue;
            }
            let (Some((from_room, from_layer)), Some((to_room, to_layer))) =
                (room(table, from), room(table, to))
            else {
                return Relation::Unknown;
            };
            if from_room == to_room {
                continue;
            }
            if to_layer < from_layer {
                return Relation::Allowed;
            }
            let (from, to) = (joined(table.of, from_room), joined(table.of, to_room));
            return Relation::Broken { from, to, is_sibling: to_layer == from_layer };
        }
        Relation::Allowed
    }

    /// The rooms that an import leads from and to, by the first table where they differ.
    pub fn rooms(&self, from: &[String], to: &[String]) -> Option<(String, String)> {
        let mut both = self.applicable(from).filter(|table| is_within(&to.join("::"), table.of));
        both.find_map(|table| {
            let ((from, _), (to, _)) = (room(table, from)?, room(table, to)?);
            (from != to).then(|| (joined(table.of, from), joined(table.of, to)))
        })
    }
}

/// A room's name in messages.
fn joined(of: &str, room: &str) -> String {
    match (of, room) {
        ("", ABOVE) => "lib.rs".to_string(),
        ("", room) => room.to_string(),
        (of, ABOVE) => format!("{}/{ABOVE}", of.replace("::", "/")),
        (of, room) => format!("{of}::{room}"),
    }
}

/// Whether a module is `of` or in it.
fn is_within(module: &str, of: &str) -> bool {
    of.is_empty() || module == of || module.strip_prefix(of).is_some_and(|x| x.starts_with("::"))
}
