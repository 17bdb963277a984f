import type { KeyObject } from 'node:crypto'
import { SEARCH_LIMITS, type FoundName } from '../../../schemas/names.ts'
import type { Keyring } from '../../crypto/keyring.ts'
import { MAX_WORK, rest } from '../../crypto/rest.ts'
import type { Db } from '../../db/database.ts'
import { findLevelsOfSecrets, type LevelState, type SecretRow } from '../../repositories/levels/levels.ts'
import { listProjectsFrom } from '../../repositories/levels/projects.ts'
import { listSearchedDocuments, type SearchedDocument } from '../../repositories/secrets/name-search.ts'
import { readDocument } from '../../rules/documents/read.ts'
import type { Slice } from '../../rules/slices.ts'
import { currentContents, visibleSecrets } from './read.ts'

/** The last searched document. `secret_id` is null if the whole project was searched. */
export interface SearchPosition { project_id: string, secret_id: string | null }

/** The position before all projects. */
export const SEARCH_START: SearchPosition = { project_id: '', secret_id: '' }

/** The range of the projects after a position, which includes a project that was not searched whole. */
export const projectsAfter = ({ project_id, secret_id }: SearchPosition) =>
  ({ from: project_id, isInclusive: secret_id !== null })

/** The parts of an organization that a caller can search. */
export interface SearchScope {
  organization_id: string
  slices: readonly Slice[]
  /** Only these projects; null for all. */
  projects: readonly string[] | null
  /** The last project of an incomplete list `projects`; the next page continues after it. */
  lastProject?: string | undefined
}

export interface SearchContext {
  db: Db
  keyring: Keyring
  storageKey: KeyObject
  /** Counts the duration of a look-up against the deadline of the request. */
  waitFor: <T>(work: Promise<T>) => Promise<T>
  /** Whether the client has disconnected: then the search ends. */
  isGone: () => boolean
}

export interface NameSearch {
  found: FoundName[]
  /** The documents that were decrypted. */
  opened: SecretRow[]
  unreadable: number
  client_managed: number
  text: number
  next: SearchPosition | null
}

/** Bytes of documents to load together, so that a search does not hold all its documents in memory. */
const BATCH_BYTES = 512 * 1024

/** Searches the names of the documents after a position, up to the limits of a page. Throws IntegrityError. */
export async function searchNames (
  { db, keyring, storageKey, waitFor, isGone }: SearchContext, scope: SearchScope, after: SearchPosition,
  isWanted: (name: string) => boolean
): Promise<NameSearch> {
  const { organization_id, slices, projects } = scope
  const range = projectsAfter(after)
  const passed = await waitFor(listProjectsFrom(db, organization_id, projects, range, SEARCH_LIMITS.projects))
  const slicesOf = byProject(slices)
  const searched = passed.filter(hasNames).map(({ id: project_id }) => ({
    project_id, after: project_id === after.project_id ? after.secret_id ?? '' : '', slices: slicesOf(project_id)
  }))
  const documents = await waitFor(
    listSearchedDocuments(db, organization_id, searched, SEARCH_LIMITS.documents + 1)
  )
  const page = documents.slice(0, SEARCH_LIMITS.documents)

  const found: FoundName[] = []
  const opened: SecretRow[] = []
  let unreadable = 0
  let worked = 0
  const last = await searchDocuments()
  const next = last ?? restOfProjects()
  const isOfPage = ({ id }: Project) => next === null || id <= next.project_id
  return {
    found,
    opened,
    unreadable,
    client_managed: passed.filter((project) => isOfPage(project) && isOfClient(project)).length,
    text: passed.filter((project) => isOfPage(project) && !isOfClient(project) && !hasNames(project)).length,
    next
  }

  // The last searched document if more documents follow, else undefined.
  async function searchDocuments (): Promise<SearchPosition | undefined> {
    let bytes = 0
    let count = 0
    for (const batch of batchesOf(page)) {
      const states = await waitFor(findLevelsOfSecrets(db, organization_id, batch.map(({ id }) => id)))
      for (const [i, state] of states.entries()) {
        const { id: secret_id, project_id, size_bytes } = batch[i]!
        if (state !== undefined) await searchDocument(state)
        bytes += size_bytes
        count += 1
        const isFull = bytes >= SEARCH_LIMITS.bytes || found.length >= SEARCH_LIMITS.names ||
          count === SEARCH_LIMITS.documents || worked >= MAX_WORK || isGone()
        if (isFull) return count < documents.length ? { project_id, secret_id } : undefined
      }
    }
    return undefined
  }

  // The level may have changed since its document was listed.
  async function searchDocument (state: LevelState) {
    const visible = hasNames(state.project) ? visibleSecrets(state, slicesOf(state.project.id)) : []
    if (visible.length === 0) return
    const contents = await currentContents(keyring, storageKey, state, visible, true)
    const began = performance.now()
    const entries = readDocument(state.project.secret_format, contents.get(state.level)!)
    opened.push(...visible)
    if (entries === undefined) unreadable += 1
    else found.push(...Object.keys(entries).filter(isWanted).sort().map((name) => toFound(state, name)))
    worked += performance.now() - began
    await rest()
  }

  // More projects may follow if the list of projects reached its limit.
  function restOfProjects (): SearchPosition | null {
    const isCut = projects === null && passed.length === SEARCH_LIMITS.projects
    const lastProject = isCut ? passed.at(-1)!.id : scope.lastProject
    return lastProject === undefined ? null : { project_id: lastProject, secret_id: null }
  }
}

type Project = LevelState['project']

// The restrictions of a search by project. Throws for a project without restrictions among others that have some.
function byProject (slices: readonly Slice[]): (projectId: string) => readonly Slice[] {
  const found = new Map<string, Slice[]>()
  for (const slice of slices) {
    const known = found.get(slice.project_id)
    if (known === undefined) found.set(slice.project_id, [slice])
    else known.push(slice)
  }
  return (projectId) => {
    if (slices.length === 0) return slices
    const its = found.get(projectId)
    if (its === undefined) throw new Error('a project outside of the restrictions is searched')
    return its
  }
}

const isOfClient = ({ encryption_type }: Project) => encryption_type === 'client'

const hasNames = (project: Project) => !isOfClient(project) && project.secret_format !== 'text'

const toFound = ({ level, project, target, environment }: LevelState, name: string): FoundName => ({
  type: 'secret-names',
  attributes: {
    name, level, project: project.slug, target: target?.slug ?? null, environment: environment?.slug ?? null
  }
})

function batchesOf (documents: readonly SearchedDocument[]): SearchedDocument[][] {
  const batches: SearchedDocument[][] = []
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
