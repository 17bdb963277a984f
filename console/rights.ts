import { signal } from '@preact/signals'
import { call, firstPages, type Schemas } from './api.ts'
import { place } from './router.ts'
import type { Ability } from './scopes.ts'
import type { Format } from './values.ts'

// What the person may do in the organization of the page, as the service computes it, and the project of the page.

type Access = Schemas['MemberAccessAttributes']
type Restriction = Schemas['TeamRestriction']
/** `scopes`: by the role in the organization; null: all. `projects`: those in which teams give more. */
interface Rights { organization: string, scopes: readonly Ability[] | null, projects: Access['projects'] }

/** Null: unknown, so the page offers everything, and the service decides. */
export const rights = signal<Rights | null>(null)
export const areKnown = (organization: string): boolean => rights.value?.organization === organization

/** Loads the rights of a member. An owner may do everything. */
export async function loadRights (organization: string, member: string, role: string | undefined) {
  if (role === 'owner') { rights.value = { organization, scopes: null, projects: [] }; return }
  rights.value = { organization, ...await accessOf(organization, member) }
}

/** What a member can see and do, by the role in the organization and by teams. */
export async function accessOf (organization: string, member: string): Promise<Access> {
  let own: Access | undefined
  const { found: projects } = await firstPages(async (page) => {
    const path = { organization, member }
    const { data, meta } = (await call('getMemberAccess', { path, query: { page, per_page: 25 } })).data
    own = data.attributes
    return { data: own.projects, meta }
  })
  return { ...own!, projects }
}

type Column = Schemas['MatrixLevel']
/** What the pages need to know of a project: who holds its key, how its documents are read, and its levels. */
export interface Project {
  organization: string,
  slug: string,
  name: string,
  isClient: boolean,
  format: Format
  levels: readonly Column[]
  /** The first of the levels that are not loaded; null: all are. */
  next: string | null
}
export const shownProject = signal<Project | undefined>(undefined)

/** Whether single names of the project can be shown: the browser reads no YAML. */
export const hasNames = ({ isClient, format }: Project): boolean => format !== 'text' && !(isClient && format === 'yaml')

/** A project as the person sees it: without the levels that restrictions exclude. */
export async function projectOf (organization: string, slug: string): Promise<Project> {
  const { data } = await call('readProjectMatrix', { path: { organization, project: slug }, query: { decrypt: false } })
  return projectIn(organization, slug, data)
}

export function projectIn (
  organization: string, slug: string, { data: { attributes: { project, levels } }, meta }: Schemas['MatrixAnswer']
): Project {
  const { name, encryption_type, secret_format: format } = project
  return { organization, slug, name, isClient: encryption_type === 'client', format, levels: inOrder(levels), next: meta.next_levels }
}

/** The order of levels: the project, then each target followed by its environments, the oldest first. */
export function inOrder (levels: readonly Column[]): Column[] {
  const ofTarget = new Map(levels.filter(({ level }) => level === 'target').map(({ target, id }) => [target, id]))
  const keyOf = ({ level, target, id }: Column) => level === 'project' ? '' : `${ofTarget.get(target) ?? target} ${level === 'target' ? '' : id}`
  return [...levels].sort((a, b) => keyOf(a) < keyOf(b) ? -1 : 1)
}

/** The level of a project of which the person sees no other one; undefined for the document of the project. */
export const onlyLevelOf = ({ levels, next }: Project): Column | undefined =>
  levels.length === 1 && next === null ? levels.find(({ level }) => level !== 'project') : undefined

interface At { project?: string | undefined, target?: string | undefined, environment?: string | undefined }

const isInside = ({ target, environment, except_status }: Restriction, at: At): boolean =>
  (target === undefined || target === at.target) && (environment === undefined || environment === at.environment) &&
  (except_status === undefined || ![undefined, null, except_status].includes(statusOf(at) as typeof except_status))

const statusOf = (at: At) => shownProject.value?.levels.find((one) =>
  one.target === (at.target ?? null) && one.environment === (at.environment ?? null))?.status

/** Whether the person has the scopes at a place, by default that of the page. */
export const can = (scopes: readonly Ability[], at: At = place.value): boolean =>
  scopes.every((scope) => has(scope, at.project, (part) => isInside(part, at)))

/** Whether the person has the scopes in some part of a project, or of any project. */
export const canSomewhere = (scopes: readonly Ability[], project?: string): boolean =>
  scopes.every((scope) => has(scope, project, () => true))

/** Whether the role in the organization gives a scope, or a team does: in a whole project, or in such a part of one. */
function has (scope: Ability, project: string | undefined, isWanted: (part: Restriction) => boolean): boolean {
  const { scopes, projects } = rights.value ?? { scopes: null, projects: [] }
  return scopes === null || scopes.includes(scope) || projects.some(({ slug, rights }) =>
    (project === undefined || slug === project) && rights.some(({ scopes, restrictions }) =>
      scopes.includes(scope) && (restrictions.length === 0 || restrictions.some(isWanted))))
}
