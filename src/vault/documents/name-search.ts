import { SEARCH_LIMITS, type FoundName } from '../../../schemas/names.ts'
import type { LevelState, SecretRow } from '../../repositories/levels/levels.ts'
import { listProjectsFrom } from '../../repositories/levels/projects.ts'
import { listSearchedDocuments } from '../../repositories/secrets/name-search.ts'
import { readDocument } from '../../rules/documents/read.ts'
import type { Slice } from '../../rules/slices.ts'
import { hasNames, isSpent, openDocuments, type OpenedDocument, type ReadContext } from './open-documents.ts'

/** The position after the last searched document. `secret_id` is null if the whole project was searched. */
export interface SearchPosition { project_id: string, secret_id: string | null }

/** The position before the first project. */
export const SEARCH_START: SearchPosition = { project_id: '', secret_id: '' }

/** The range of projects to search after a position. Includes the project of the position if a part of it is left. */
export const projectsAfter = ({ project_id, secret_id }: SearchPosition) =>
  ({ from: project_id, isInclusive: secret_id !== null })

/** The parts of an organization that a caller can search. */
export interface SearchScope {
  organization_id: string
  slices: readonly Slice[]
  /** Searches only projects with these ids; null for all projects. */
  projects: readonly string[] | null
  /** Set if the list `projects` is incomplete: its last project. The next page continues after this project. */
  lastProject?: string | undefined
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

/** Searches the names in the documents after a position, up to the limits of a page. Throws IntegrityError. */
export async function searchNames (
  context: ReadContext, scope: SearchScope, after: SearchPosition,
  isWanted: (name: string) => boolean
): Promise<NameSearch> {
  const { db, waitFor } = context
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

  // Returns the last searched document if more documents follow; otherwise undefined.
  async function searchDocuments (): Promise<SearchPosition | undefined> {
    let bytes = 0
    let count = 0
    for await (const { document, content } of openDocuments(context, organization_id, page, slicesOf)) {
      const { id: secret_id, project_id, size_bytes } = document
      if (content !== undefined) searchDocument(content)
      bytes += size_bytes
      count += 1
      const isFull = bytes >= SEARCH_LIMITS.bytes || found.length >= SEARCH_LIMITS.names ||
        count === SEARCH_LIMITS.documents || isSpent(context)
      if (isFull) return count < documents.length ? { project_id, secret_id } : undefined
    }
    return undefined
  }

  function searchDocument ({ state, secret, text }: OpenedDocument) {
    const entries = readDocument(state.project.secret_format, text, undefined, context.work)
    opened.push(secret)
    if (entries === undefined) unreadable += 1
    else found.push(...Object.keys(entries).filter(isWanted).sort().map((name) => toFound(state, name)))
  }

  // The position for the next page if the list of projects reached its limit, because more projects may follow.
  function restOfProjects (): SearchPosition | null {
    const isCut = projects === null && passed.length === SEARCH_LIMITS.projects
    const lastProject = isCut ? passed.at(-1)!.id : scope.lastProject
    return lastProject === undefined ? null : { project_id: lastProject, secret_id: null }
  }
}

type Project = Pick<LevelState['project'], 'id' | 'encryption_type' | 'secret_format'>

// Groups the restrictions by project. The returned function throws for a project without restrictions if other projects
// have restrictions.
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

const toFound = ({ level, project, target, environment }: LevelState, name: string): FoundName => ({
  type: 'secret-names',
  attributes: {
    name,
    level,
    project: project.slug,
    target: target?.slug ?? null,
    environment: environment?.slug ?? null,
    project_name: project.name,
    target_name: target?.name ?? null,
    environment_name: environment?.name ?? null
  }
})
