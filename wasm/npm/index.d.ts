/**
 * Late-interaction (MaxSim) scores on the CPU: the engine is ready once the module is imported.
 */
export { Scores, Tokens, rank, rankFiles, score } from './engine.js';
export type {
    FileOptions,
    Integers,
    Pairing,
    RankOptions,
    RankedDocument,
    Ranking,
    ScoreOptions,
    SimilarityOptions,
    TokenData,
    TokenFormat,
    TokensOptions,
} from './engine.js';
