/**
 * Counted work on documents. A unit takes about a microsecond on a small server. The work is counted, not measured, so
 * that the pages of a read depend only on the documents.
 */
export interface Work { done: number }

/** Units of work. The slowest documents of each format take about as long as they count, the usual ones less. */
export const WORK = {
  /** To load and decrypt a document, without its content. */
  document: 150,
  /** For each KiB of content: to decrypt and read it. */
  kilobyte: 25,
  /** For each name of an `.env` document: in the plain form `NAME=value`, and in any other form. */
  plainName: 1.2,
  otherName: 3,
  /** For each empty line or comment of an `.env` document. */
  emptyLine: 0.1,
  jsonToken: 1,
  yamlToken: 4,
  /** For each line of a YAML document, because a text of many lines is one token. */
  yamlLine: 0.4,
  /** For each KiB of the values of a YAML document, with expanded aliases, and of the values in a history of a name. */
  writtenKilobyte: 5,
  /** For each name of a document in a matrix. */
  sortedName: 1,
  /** For each name and level of a matrix. */
  cell: 0.02,
  /** For each restriction of a team's role. */
  restriction: 3
} as const

/** The units after which a read of many documents ends its page. */
export const MAX_WORK = 150_000

/** The work to load and decrypt a document of this size. */
export const workOfDocument = (bytes: number): number => WORK.document + bytes / 1024 * WORK.kilobyte
