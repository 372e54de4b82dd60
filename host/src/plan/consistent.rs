//! Which kernels give scores the same bits: a pure function of the table and of shapes.

use maxsim_kernels::abi::element::Operand;
use maxsim_kernels::abi::params::Group;
use maxsim_kernels::table::forward::Variant;

use crate::problem::Problem;
use crate::problem::shape::ScoreShape;

/// May a call run this kernel, if its scores are to have the bits of the one that finds winners
/// (`None` = any bits)? If not, why.
///
/// Both must add products in the same way, and then the maxima of a query's tokens. Within a tile
/// these are added in an order that all kernels share; queries in several tiles are sums of tiles.
/// Of codes, whose kernels also differ in when they multiply by scales, no two are known to agree.
pub(super) fn agree(
    row: &Variant,
    winners: Option<&'static Variant>,
    problem: &Problem<'_>,
) -> std::result::Result<(), String> {
    let Some(winners) = winners.filter(|winners| winners.name != row.name) else { return Ok(()) };
    let are_elements = matches!(row.operand, Operand::Element(_));
    // Rows have the same lengths to the bit, whichever kernel finds them.
    let same_operation =
        row.row_operation == winners.row_operation || row.normalizes() && winners.normalizes();
    let same_products = are_elements
        && row.products() == winners.products()
        && same_operation
        && row.tf32 == winners.tf32;
    if !same_products {
        return Err(format!("adds products in another way than {}", winners.name));
    }
    let are_alike = row.query_tile == winners.query_tile
        || keeps_queries_whole(row, problem) && keeps_queries_whole(winners, problem);
    match are_alike {
        true => Ok(()),
        false => Err(format!("adds query tokens in another order than {}", winners.name)),
    }
}

/// Whether no query is in several tiles of the kernel, for sure.
fn keeps_queries_whole(row: &Variant, problem: &Problem<'_>) -> bool {
    let queries = problem.queries();
    let groups_per_tile = row.query_tile / Group::ROWS;
    let mut n_groups = (0..queries.n_items()).map(|q| queries.item_len(q).div_ceil(Group::ROWS));
    match problem.shape() {
        // Queries share tiles, which one query after the other fills without a rest.
        ScoreShape::Cross { .. } => {
            let Some(first) = n_groups.next() else { return true };
            groups_per_tile.checked_rem(first).is_none_or(|rest| rest == 0)
                && n_groups.all(|n| n == first)
        }
        _ => n_groups.all(|n| n <= groups_per_tile),
    }
}
