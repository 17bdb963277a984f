import type { KeyObject } from 'node:crypto'
import type { Keyring } from '../../crypto/keyring.ts'
import type { Db } from '../../db/database.ts'
import { findLevelsOfSecrets, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import { MAX_WORK, workOfDocument, type Work } from '../../rules/documents/work.ts'
import type { Slice } from '../../rules/slices.ts'
import { currentContents, visibleSecrets } from './read.ts'

/** The context of a request that reads many documents. */
export interface ReadContext {
  db: Db
  keyring: Keyring
  storageKey: KeyObject
  /** Waits for a look-up, and counts its duration against the deadline of the request. */
  waitFor: <T>(work: Promise<T>) => Promise<T>
  /** Whether the client has disconnected, so that the work should end. */
  isDisconnected: () => boolean
  /** The work of the request so far. `openDocuments` counts the decryption, and the caller what it reads. */
  work: Work
  /** Yields to the event loop after a step that began at this time (`performance.now`), with pauses in long work. */
  pace: (began: number) => Promise<void>
}

/** Whether a request has done as much work as fits into a page, or its client has disconnected. */
export const isSpent = ({ work, isDisconnected }: Pick<ReadContext, 'work' | 'isDisconnected'>): boolean =>
  work.done >= MAX_WORK || isDisconnected()

/** A level with its decrypted document. */
export interface OpenedDocument { state: LevelState, secret: SecretRow, text: string }

/** Maximum bytes of documents in a batch, so that a request does not hold all its documents in memory. */
const BATCH_BYTES = 512 * 1024

/** Whether the server can read names in the documents of a project. */
export const hasNames = (
  { encryption_type, secret_format }: Pick<LevelState['project'], 'encryption_type' | 'secret_format'>
) =>
  encryption_type !== 'client' && secret_format !== 'text'

/** The warning to a request with `inherited` in projects of which some have no documents that the server can merge. */
export function inheritedWarning (
  projects: readonly Pick<LevelState['project'], 'slug' | 'encryption_type' | 'secret_format'>[]
): { warning?: string } {
  const slugs = [...new Set(projects.filter((project) => !hasNames(project)).map(({ slug }) => slug))]
  const where = slugs.map((slug) => `\`${slug}\``).join(', ')
  return slugs.length === 0 ? {} : { warning: `\`inherited\` has no effect in ${where}: documents there are not merged` }
}

/**
 * Loads and decrypts documents in their order, and yields to the event loop between two documents. `content` is
 * undefined if the document was deleted after the list was loaded, or if the caller can no longer read the document.
 *
 * @param slicesOf returns the restrictions of the caller in a project
 */
export async function * openDocuments<D extends { id: string, size_bytes: number }> (
  { db, keyring, storageKey, waitFor, work, pace }: ReadContext, organization_id: string, documents: readonly D[],
  slicesOf: (projectId: string) => readonly Slice[]
): AsyncGenerator<{ document: D, content: OpenedDocument | undefined }> {
  for (const batch of batchesOf(documents)) {
    const states = await waitFor(findLevelsOfSecrets(db, organization_id, batch.map(({ id }) => id)))
    for (const [i, state] of states.entries()) {
      const began = performance.now()
      const document = batch[i]!
      work.done += workOfDocument(document.size_bytes)
      yield { document, content: state && await open(state) }
      await pace(began)
    }
  }

  async function open (state: LevelState): Promise<OpenedDocument | undefined> {
    const [secret] = hasNames(state.project) ? visibleSecrets(state, slicesOf(state.project.id)) : []
    if (secret === undefined) return undefined
    const contents = await currentContents(keyring, storageKey, state, [secret], true)
    return { state, secret, text: contents.get(state.level)! }
  }
}

/** Divides documents into batches to load together. */
export function batchesOf<D extends { size_bytes: number }> (documents: readonly D[]): D[][] {
  const batches: D[][] = []
  let bytes = Infinity
  for (const document of documents) {
    if (bytes + document.size_bytes > BATCH_BYTES) {
      batches.push([])
      bytes = 0
    }
    batches.at(-1)!.push(document)
    bytes += document.size_bytes
  }
  return batches
}
