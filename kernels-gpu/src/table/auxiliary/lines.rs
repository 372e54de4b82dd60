//! The lines of all kernels that are not forward ones, family by family.

/// Calls `$emit!` with the table:
///
/// ```text
/// /// what it is for, and why so many of its CTAs share a multiprocessor
/// FAMILY(struct that it takes): Role, threads of a CTA, largest dynamic shared memory => {
///     instruction set, element type (- = any), entry, CTAs of a multiprocessor (and begins_early)
/// }
/// ```
#[rustfmt::skip] // one line, one kernel
macro_rules! auxiliary_kernels {
    ($emit:ident) => { $emit! {

    /// Adds partial sums; a thread for each result.
    SUM_PARTIALS(SumPartialsParams): Forward, params::SUM_PARTIALS_THREADS, 0 => {
        Sm80  -    maxsim_sum_partials 1;
    }
    /// Combines the results of document splits: a CTA has one score, a thread some of its query
    /// tokens.
    COMBINE_SPLITS(CombineSplitsParams): Forward, params::COMBINE_SPLITS_THREADS,
        params::COMBINE_SPLITS_SHARED_BYTES => {
        Sm80  -    maxsim_combine_splits 1;
    }

    /// Finds the rows of items whose offsets, lengths or ids are on the device.
    SEGMENTS(SegmentsParams): Forward, params::SEGMENTS_THREADS, 0 => {
        Sm80  -    maxsim_segments 1;
    }

    /// Finds what rows are normalised by. 64 registers.
    ROW_NORMS(backward::RowNormsParams): Normalized, backward::THREADS, 0 => {
        Sm80  F16  maxsim_row_norms_f16 4;
        Sm80  Bf16 maxsim_row_norms_bf16 4;
        Sm80  F32  maxsim_row_norms_f32 4;
    }
    /// Finds what decoded rows are normalised by. 64 registers.
    DECODED_NORMS(ResidualNormsParams): Upload, backward::THREADS, 0 => {
        Sm80  F16  maxsim_residual_norms_f16 4;
        Sm80  Bf16 maxsim_residual_norms_bf16 4;
    }
    /// Decodes rows, for kernels that multiply them several times. 64 registers.
    DECODED_ROWS(DecodedRowsParams): Centroids, backward::THREADS, 0 => {
        Sm80  F16  maxsim_residual_rows_f16 4;
        Sm80  Bf16 maxsim_residual_rows_bf16 4;
    }

    /// ∂Q: a sum of winners' rows for each query row. 64 registers.
    GATHER(backward::GatherParams): Backward, backward::THREADS, 0 => {
        Sm80  F16  maxsim_gradient_gather_f16 4;
        Sm80  Bf16 maxsim_gradient_gather_bf16 4;
        Sm80  F32  maxsim_gradient_gather_f32 4;
    }
    /// ∂Q where documents are INT8 codes: sums of winners' rows, each times its scale.
    GATHER_CODES(backward::GatherParams): BackwardCodes, backward::THREADS, 0 => {
        Sm80  -    maxsim_gradient_gather_i8 4;
    }
    /// ∂D: sums over segments of sorted sources. A fourth CTA takes loads from each warp, and
    /// before sm_90 it would make them spill.
    SEGMENTED_SUM(backward::SegmentedSumParams): Backward, backward::THREADS, 0 => {
        Sm80  F16  maxsim_gradient_segmented_sum_sm80_f16 3;
        Sm80  Bf16 maxsim_gradient_segmented_sum_sm80_bf16 3;
        Sm80  F32  maxsim_gradient_segmented_sum_sm80_f32 3;
        Sm90a F16  maxsim_gradient_segmented_sum_sm90_f16 4;
        Sm90a Bf16 maxsim_gradient_segmented_sum_sm90_bf16 4;
        Sm90a F32  maxsim_gradient_segmented_sum_sm90_f32 4;
    }
    /// Both gradients of documents that meet one short query, without a sort. CTAs as for
    /// [`SEGMENTED_SUM`].
    SHORT_QUERY(backward::ShortQueryParams): Backward, backward::THREADS,
        backward::SHORT_QUERY_SHARED_BYTES => {
        Sm80  F16  maxsim_gradient_short_query_sm80_f16 3;
        Sm80  Bf16 maxsim_gradient_short_query_sm80_bf16 3;
        Sm80  F32  maxsim_gradient_short_query_sm80_f32 3;
        Sm90a F16  maxsim_gradient_short_query_sm90_f16 4 begins_early;
        Sm90a Bf16 maxsim_gradient_short_query_sm90_bf16 4 begins_early;
        Sm90a F32  maxsim_gradient_short_query_sm90_f32 4 begins_early;
    }
    /// Both gradients in one pass of atomic additions: one number at a time, on sm_90 four. They
    /// hold terms of documents' rows beside what those that sum over pairs hold, and what
    /// neighbours chose; three CTAs spill.
    ATOMIC(backward::AtomicParams): Backward, backward::THREADS, 0 => {
        Sm80  F16  maxsim_gradient_atomic_sm80_f16 2;
        Sm80  Bf16 maxsim_gradient_atomic_sm80_bf16 2;
        Sm80  F32  maxsim_gradient_atomic_sm80_f32 2;
        Sm90a F16  maxsim_gradient_atomic_sm90_f16 2;
        Sm90a Bf16 maxsim_gradient_atomic_sm90_bf16 2;
        Sm90a F32  maxsim_gradient_atomic_sm90_f32 2;
    }
    /// Goes from gradients of normalised rows to those of rows. 64 registers.
    PROJECT(backward::ProjectParams): BackwardNormalized, backward::THREADS, 0 => {
        Sm80  F16  maxsim_gradient_project_f16 4;
        Sm80  Bf16 maxsim_gradient_project_bf16 4;
        Sm80  F32  maxsim_gradient_project_f32 4;
    }
    /// Counts the sources of a window's tasks.
    COUNT(backward::CountParams): Backward, backward::THREADS,
        backward::count_shared_bytes(backward::WINDOW_ROWS) => {
        Sm80  -    maxsim_gradient_count 1;
    }
    /// Sorts sources by document row, stably.
    SORT(backward::SortParams): Backward, backward::THREADS,
        backward::shared_bytes(backward::WINDOW_ROWS) => {
        Sm80  -    maxsim_gradient_sort 1;
    }
    /// Adds the partial sums of rows that span segments.
    FIXUP(backward::SegmentedSumParams): Backward, backward::THREADS,
        backward::FIXUP_SHARED_BYTES => {
        Sm80  -    maxsim_gradient_fixup 1;
    }
    /// Adds sums over chunks of pairs.
    SUM_CHUNKS(backward::SumParams): Backward, backward::THREADS, 0 => {
        Sm80  -    maxsim_gradient_sum_chunks 1;
    }

    /// ∂Q where documents are decoded. Up to 90 registers: with a third CTA, or a fourth, it
    /// spills some on one target or another.
    RESIDUAL_GATHER(backward::residual::ResidualGatherParams): BackwardResidual,
        backward::THREADS, 0 => {
        Sm80  F16  maxsim_residual_gather_f16 2;
        Sm80  Bf16 maxsim_residual_gather_bf16 2;
    }
    /// Goes from gradients of normalised rows to those of decoded ones. 64 registers.
    RESIDUAL_PROJECT(backward::residual::ResidualProjectParams): BackwardResidual,
        backward::THREADS, 0 => {
        Sm80  F16  maxsim_residual_project_f16 4;
        Sm80  Bf16 maxsim_residual_project_bf16 4;
    }
    /// Adds rows to the parts of the tables' gradients. 64 registers. (With buckets of 8 bits
    /// shared memory has room for fewer CTAs.)
    RESIDUAL_TABLES(backward::residual::TablesParams): BackwardResidual, residual::TABLES_THREADS,
        residual::tables_shared_bytes(8) => {
        Sm80  -    maxsim_residual_tables 16;
    }
    /// Adds the parts. 64 registers.
    RESIDUAL_SUM(backward::residual::PartsParams): BackwardResidual, backward::THREADS, 0 => {
        Sm80  -    maxsim_residual_sum 4;
    }

    /// Cross-entropies with one positive per row. 64 registers.
    LOSS_CONTRASTIVE(loss::RowsParams): Loss, loss::THREADS, loss::SHARED_BYTES => {
        Sm80  -    maxsim_loss_contrastive 4;
    }
    /// Divergences from a teacher's scores. 64 registers.
    LOSS_DISTILLATION(loss::RowsParams): Loss, loss::THREADS, loss::SHARED_BYTES => {
        Sm80  -    maxsim_loss_distillation 4;
    }
    /// Adds the rows' losses.
    LOSS_MEAN(loss::MeanParams): Loss, loss::THREADS, loss::SHARED_BYTES => {
        Sm80  -    maxsim_loss_mean 1;
    }

    /// Selects the best k of each row of scores, or of keys. 64 registers: two CTAs, since one
    /// waits for its threads much of the time.
    TOP_K(top_k::TopKParams): TopK, top_k::THREADS, top_k::SHARED_BYTES => {
        Sm80  -    maxsim_top_k 2;
    }
    /// The same of short rows of plain scores, which stay in registers. 64 registers.
    TOP_K_SHORT(top_k::TopKParams): TopK, top_k::SHORT_THREADS, top_k::SHORT_SHARED_BYTES => {
        Sm80  -    maxsim_top_k_short 1;
    }
    /// Finds the largest scores of the groups of long rows. Up to 42 registers: three CTAs are all
    /// threads that some targets have.
    TOP_K_LARGEST(top_k::groups::TopKGroupsParams): TopK, top_k::groups::GROUP_THREADS,
        top_k::groups::LARGEST_SHARED_BYTES => {
        Sm80  -    maxsim_top_k_largest 3;
    }
    /// Finds the bound that the best of long rows reach. Up to 39 registers.
    TOP_K_BOUND(top_k::groups::TopKGroupsParams): TopK, top_k::groups::GROUP_THREADS,
        top_k::SHORT_SHARED_BYTES => {
        Sm80  -    maxsim_top_k_bound 2;
    }
    /// Gathers the keys of scores that reach it. Up to 42 registers.
    TOP_K_GATHER(top_k::groups::TopKGroupsParams): TopK, top_k::groups::GROUP_THREADS, 0 => {
        Sm80  -    maxsim_top_k_gather 3;
    }

    /// Makes items of the candidates of a search.
    SEARCH_CANDIDATES(search::SearchParams): TopK, search::THREADS, 0 => {
        Sm80  -    maxsim_search_candidates 1;
    }
    /// Finds the documents that may change what a search finds. Up to 64 registers, all that 1024
    /// threads can have.
    SEARCH_REACHING(search::SearchParams): TopK, search::THREADS, search::SHARED_BYTES => {
        Sm80  -    maxsim_search_reaching 1;
    }

    /// Compares points of up to 3 dims. 96 registers: five CTAs of four warps hide what loads of
    /// shared memory take.
    CHAMFER_NEAREST_3(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::NEAREST_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_nearest_d3 5;
    }
    /// Compares points of up to 8 dims.
    CHAMFER_NEAREST_8(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::NEAREST_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_nearest_d8 4;
    }
    /// Compares points of up to 15 dims. 128 registers.
    CHAMFER_NEAREST_15(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::NEAREST_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_nearest_d15 4;
    }
    /// Compares points of up to 3 dims, for both directions.
    CHAMFER_BOTH_3(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::BothShared::<4>::MOST_BYTES => {
        Sm80  -    maxsim_chamfer_both_d3 5;
    }
    /// Compares points of up to 8 dims, for both directions.
    CHAMFER_BOTH_8(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::BothShared::<8>::MOST_BYTES => {
        Sm80  -    maxsim_chamfer_both_d8 5;
    }
    /// Compares points of up to 15 dims, for both directions.
    CHAMFER_BOTH_15(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::BothShared::<16>::MOST_BYTES => {
        Sm80  -    maxsim_chamfer_both_d15 4;
    }
    /// Compares points of any dim. 128 registers.
    CHAMFER_COMPARE(chamfer::NearestParams): Chamfer, chamfer::THREADS,
        chamfer::WIDE_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_compare 4;
    }
    /// Finds the box of the points of two clouds.
    CHAMFER_BOUNDS(chamfer_search::SearchParams): Chamfer, chamfer_search::THREADS, 0 => {
        Sm80  -    maxsim_chamfer_bounds 4;
    }
    /// Finds the places of points on a curve.
    CHAMFER_CODES(chamfer_search::SearchParams): Chamfer, chamfer_search::THREADS,
        chamfer_search::CODES_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_codes 4;
    }
    /// Sorts points by a digit of their places.
    CHAMFER_SORT(chamfer_search::SearchParams): Chamfer, chamfer_search::THREADS,
        chamfer_search::SORT_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_sort 4;
    }
    /// Gathers sorted points and finds their boxes.
    CHAMFER_BOXES(chamfer_search::SearchParams): Chamfer, chamfer_search::BOXES_THREADS,
        chamfer_search::BOXES_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_boxes 1;
    }
    /// Searches sorted points for neighbours: many warps, of which some wait. 72 registers: of 64
    /// some are spilled on sm_86 to sm_89.
    CHAMFER_SEARCH(chamfer_search::SearchParams): Chamfer, chamfer_search::SEARCH_THREADS, 0 => {
        Sm80  -    maxsim_chamfer_search 7;
    }
    /// Finds the largest coordinates of points of many dims. 64 registers.
    CHAMFER_EXTENTS(chamfer::select::CopyParams): Chamfer, chamfer::select::COPY_THREADS, 0 => {
        Sm80  -    maxsim_chamfer_extents 4;
    }
    /// Copies points of many dims for tensor cores. 128 registers.
    CHAMFER_COPIES(chamfer::select::CopyParams): Chamfer, chamfer::select::COPY_THREADS, 0 => {
        Sm80  -    maxsim_chamfer_copies 2;
    }
    /// Finds half the squared distances of points of many dims, both directions at once, by TMA and
    /// wgmma: two consumer warpgroups, 224 registers.
    CHAMFER_PRODUCTS(chamfer::products::ProductParams): Chamfer, chamfer::products::THREADS,
        chamfer::products::SHARED_BYTES => {
        Sm90a -    maxsim_chamfer_sm90_products 1 tensor_maps;
    }
    /// Finds the blocks of points of many dims that may have nearest ones. 64 registers.
    CHAMFER_SELECT(chamfer::select::RefineParams): Chamfer, chamfer::select::SELECT_THREADS,
        chamfer::select::SELECT_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_select 4;
    }
    /// The same, by products that serve both directions. 64 registers.
    CHAMFER_SELECT_HALVES(chamfer::select::RefineParams): Chamfer,
        chamfer::select::HALVES_POINTS as usize, chamfer::select::HALVES_SHARED_BYTES => {
        Sm90a -    maxsim_chamfer_sm90_select 4;
    }
    /// Compares points of many dims with those that may be nearest. 128 registers: 96 are too few.
    CHAMFER_REFINE(chamfer::select::RefineParams): Chamfer, chamfer::THREADS,
        chamfer::select::REFINE_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_refine 4;
    }
    /// Reduces the distances of clouds: eight keys in flight, so one CTA.
    CHAMFER_REDUCE(chamfer::ReduceParams): Chamfer, chamfer::REDUCE_THREADS,
        chamfer::REDUCE_SHARED_BYTES => {
        Sm80  -    maxsim_chamfer_reduce 1;
    }
    /// Adds to the gradients of neighbours. 64 registers.
    CHAMFER_SCATTER(chamfer::GradientParams): Chamfer, chamfer::GRADIENT_THREADS, 0 => {
        Sm80  -    maxsim_chamfer_scatter 4;
    }
    /// Writes the gradients of points. 64 registers.
    CHAMFER_GRADIENTS(chamfer::GradientParams): Chamfer, chamfer::GRADIENT_THREADS, 0 => {
        Sm80  -    maxsim_chamfer_gradients 4;
    }

    /// Makes tokens of hidden states. 128 registers.
    PROJECTION(projection::ProjectionParams): Projection, projection::THREADS,
        projection::SHARED_BYTES => {
        Sm80  F16  maxsim_projection_f16 2;
        Sm80  Bf16 maxsim_projection_bf16 2;
        Sm80  F32  maxsim_projection_f32 2;
    }
    /// The same by TMA and wgmma: two consumer warpgroups, 224 registers.
    PROJECTION_MAPPED(projection::MappedParams): Projection, projection::sm90::THREADS,
        projection::sm90::SHARED_BYTES => {
        Sm90a F16  maxsim_projection_sm90_f16 1 tensor_maps;
        Sm90a Bf16 maxsim_projection_sm90_bf16 1 tensor_maps;
    }
    /// Multiplies gradients of rows with W, or with the rows. 128 registers.
    PROJECTION_PRODUCT(projection::gradient::ProductParams): Projection,
        projection::gradient::THREADS, projection::gradient::SHARED_BYTES => {
        Sm80  F16  maxsim_projection_product_f16 2;
        Sm80  Bf16 maxsim_projection_product_bf16 2;
        Sm80  F32  maxsim_projection_product_f32 2;
    }
    /// Gathers rows of hidden states. 64 registers.
    PROJECTION_GATHER(projection::gradient::GatherRowsParams): Projection,
        projection::gradient::THREADS, 0 => {
        Sm80  -    maxsim_projection_gather 4;
    }
    /// Puts rows that query tokens chose in slots. 64 registers.
    PROJECTION_CHOOSE(projection::gradient::ChooseParams): Projection,
        projection::gradient::THREADS, projection::gradient::CHOOSE_SHARED_BYTES => {
        Sm80  -    maxsim_projection_choose 4;
    }
    /// Takes rows out of slots whose tokens have gradients of zeros. 64 registers.
    PROJECTION_ACTIVE(projection::gradient::ActiveParams): Projection,
        projection::gradient::THREADS, 0 => {
        Sm80  -    maxsim_projection_active 4;
    }
    /// Writes zeros beside other kernels. 40 registers.
    PROJECTION_ZEROS(projection::gradient::ZerosParams): Projection,
        projection::gradient::THREADS, 0 => {
        Sm80  -    maxsim_projection_zeros 6;
    }
    /// Adds parts of sums, and rounds. 64 registers.
    PROJECTION_SUM(projection::gradient::SumPartsParams): Projection,
        projection::gradient::THREADS, 0 => {
        Sm80  -    maxsim_projection_sum 4;
    }

    /// Collects similarities above a bound, with the query tiles of `sm80_*_d128_q256_winners`, of
    /// twice as many warps: four fragments a warp have no registers besides for bounds, and two
    /// with 128 registers spill.
    XTR_COLLECT_128(xtr::CollectParams): Xtr, 256, xtr::collect_shared_bytes(8, 256, 64, 2, 4) => {
        Sm80  F16  maxsim_xtr_collect_d128_f16 1;
        Sm80  Bf16 maxsim_xtr_collect_d128_bf16 1;
    }
    /// The same of any dim, with the tiles of `sm80_*_wide_q128_winners`; those of f32, and of
    /// `sm80_f32_q128_winners`, are half as long.
    XTR_COLLECT(xtr::CollectParams): Xtr, 128, xtr::collect_shared_bytes(4, 128, 128, 0, 3) => {
        Sm80  F16  maxsim_xtr_collect_wide_f16 2;
        Sm80  Bf16 maxsim_xtr_collect_wide_bf16 2;
        Sm80  F32  maxsim_xtr_collect_wide_f32 2;
    }
    /// The same of normalised rows, whose tiles are half as long.
    XTR_COLLECT_NORMALIZED(xtr::CollectParams): Xtr, 128,
        xtr::collect_shared_bytes(4, 128, 64, 0, 3) => {
        Sm80  F16  maxsim_xtr_collect_normalized_f16 2;
        Sm80  Bf16 maxsim_xtr_collect_normalized_bf16 2;
        Sm80  F32  maxsim_xtr_collect_normalized_f32 2;
    }
    /// The same up to dim 128, beside maxima and winners, with the tiles of
    /// `sm90_*_d128_q256_winners`: 224 registers for consumers.
    XTR_COLLECT_MAPPED(xtr::CollectParams): Xtr, xtr::mapped::THREADS,
        xtr::mapped::SHARED_BYTES => {
        Sm90a F16  maxsim_xtr_collect_sm90_f16 1 tensor_maps;
        Sm90a Bf16 maxsim_xtr_collect_sm90_bf16 1 tensor_maps;
    }
    /// Selects the k-th largest of each query token's similarities.
    XTR_SELECT(xtr::SelectParams): Xtr, xtr::SELECT_THREADS, xtr::SELECT_SHARED_BYTES => {
        Sm80  -    maxsim_xtr_select 4;
    }
    /// Makes scores of maxima and thresholds; a thread for each pair.
    XTR_SCORE(xtr::ScoreParams): Xtr, xtr::SCORE_THREADS, 0 => {
        Sm80  -    maxsim_xtr_score 8;
    }

    /// Scores winners again, in full precision. 80 registers.
    RESCORE(rescore::RescoreParams): Rescore, rescore::THREADS, rescore::SHARED_BYTES => {
        Sm80  F16  maxsim_rescore_f16 3;
        Sm80  Bf16 maxsim_rescore_bf16 3;
        Sm80  F32  maxsim_rescore_f32 3;
    }
    /// Makes INT8 and FP8 codes of rows with a scale each. 64 registers.
    QUANTIZE(quantize::QuantizeParams): Rescore, backward::THREADS, 0 => {
        Sm80  F16  maxsim_quantize_f16 4;
        Sm80  Bf16 maxsim_quantize_bf16 4;
        Sm80  F32  maxsim_quantize_f32 4;
    }
    /// Makes INT8 affine codes. 64 registers.
    QUANTIZE_AFFINE(quantize::QuantizeParams): Upload, backward::THREADS, 0 => {
        Sm80  F16  maxsim_quantize_affine_f16 4;
        Sm80  Bf16 maxsim_quantize_affine_bf16 4;
        Sm80  F32  maxsim_quantize_affine_f32 4;
    }
    /// Finds the largest finite magnitude of tokens, for the scale of [`QUANTIZE_TENSOR`]. 64
    /// registers.
    QUANTIZE_LARGEST(quantize::LargestParams): Upload, backward::THREADS, 0 => {
        Sm80  F16  maxsim_quantize_largest_f16 4;
        Sm80  Bf16 maxsim_quantize_largest_bf16 4;
        Sm80  F32  maxsim_quantize_largest_f32 4;
    }
    /// Makes FP8 codes with one scale for all rows. 64 registers.
    QUANTIZE_TENSOR(quantize::QuantizeParams): Upload, backward::THREADS, 0 => {
        Sm80  F16  maxsim_quantize_tensor_f16 4;
        Sm80  Bf16 maxsim_quantize_tensor_bf16 4;
        Sm80  F32  maxsim_quantize_tensor_f32 4;
    }

    /// Computes the scores of centroids; warps have 16 centroids at a time. 168 registers.
    CENTROID_SCORES(CentroidScoresParams): Centroids,
        residual_chunk::CENTROID_SCORES_THREADS, 0 => {
        Sm80  F16  maxsim_centroid_scores_f16 3;
        Sm80  Bf16 maxsim_centroid_scores_bf16 3;
    }
    /// Scores query tiles with infinities, which the kernels that read centroids' scores skip.
    INFINITE_QUERIES(ByCentroidParams): Centroids,
        residual_chunk::CENTROID_SCORES_THREADS, 0 => {
        Sm80  F16  maxsim_infinite_queries_f16 3;
        Sm80  Bf16 maxsim_infinite_queries_bf16 3;
    }

    /// Reads memory and does nothing else: how fast a kernel bound by memory could be.
    BANDWIDTH(BandwidthParams): Measurement, params::BANDWIDTH_THREADS, 0 => {
        Sm80  -    maxsim_bandwidth 1;
    }

    } };
}
pub(crate) use auxiliary_kernels;
