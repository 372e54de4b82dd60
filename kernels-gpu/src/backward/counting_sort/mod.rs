//! A stable counting sort of winners by document row: [`count`] counts the winners of each row,
//! [`sort`] places them behind one another.

pub mod count;
pub mod sort;
mod steps;
