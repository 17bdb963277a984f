import { computed, effect, signal } from '@preact/signals'
import { call, refusals, type Schemas } from './api.ts'
import { actFor } from './auth.ts'
import { go, place } from './router.ts'
import { changed } from './ui.tsx'

// The signed-in person and the organizations that this person belongs to.

type Membership = Schemas['IncludedOrganization']['attributes']

export const person = signal<{ id: string, name: string, email: string } | null>(null)
export const memberships = signal<readonly Membership[]>([])
export const membership = computed(() => memberships.value.find(({ slug }) => slug === place.value.organization))

export async function loadPerson () {
  const { data: { data, included } } = await call('getUser')
  if (data.type !== 'users') throw new Error('The console acts for people only.')
  const { name, email } = data.attributes
  actFor(data.id)
  person.value = { id: data.id, name, email }
  memberships.value = included.map(({ attributes }) => attributes)
}

/** After a refusal, loads the roles of the person, and says whether another person has changed them. */
async function checkRole () {
  const before = membership.peek()
  await loadPerson()
  const now = membership.peek()
  if (before === undefined || before.slug !== place.peek().organization || now?.role === before.role) return
  if (now === undefined) go({})
  changed(now === undefined
    ? `You are not a member of ${before.name} any more: another person removed you.`
    : `Another person has changed your role in ${before.name}: you are ${roleName(now.role ?? '')} now. This page shows what you may see now.`)
}
effect(() => { if (refusals.value > 0) checkRole().catch(() => {}) })

const ROLES: Record<Schemas['Role'], string> = {
  owner: 'Owner: everything, also billing and the deletion of the organization',
  administrator: 'Administrator: everything but billing and the deletion of the organization',
  developer: 'Developer: reads and changes secrets, targets and environments, restores versions',
  member: 'Member: reads and changes secrets',
  auditor: 'Auditor: sees history, members and tokens, but no secrets',
  billing_manager: 'Billing manager: sees bills and limits, but no projects',
  api_user: 'API user: reads encrypted documents only',
  guest: 'Guest: only what teams give, such as one environment'
}
export const ROLE_OPTIONS = Object.entries(ROLES)
/** Roles in projects: a billing manager and a guest have nothing to do there. */
export const PROJECT_ROLE_OPTIONS = Object.entries({
  ...ROLES,
  owner: 'Owner: everything there',
  administrator: 'Administrator: everything there',
  auditor: 'Auditor: sees the history there, but no secrets'
}).filter(([role]) => role !== 'billing_manager' && role !== 'guest')
export const roleName = (role: string): string => (ROLES[role as Schemas['Role']] ?? role).split(':')[0]!
