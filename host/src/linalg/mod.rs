//! Arithmetic on rows in host memory: conversion, kernels for products of a tile, lengths of
//! rows.

pub(crate) mod convert;
pub(crate) mod gemm;
pub(crate) mod kernels;
pub(crate) mod normalize;
