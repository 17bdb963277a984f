import { signal } from '@preact/signals'
import { HOME } from './auth.ts'

// The address has slugs and ids only, never a name of a secret or a value.

export interface Place {
  page: PageName
  organization: string
  project: string
  target: string | undefined
  environment: string | undefined
}

/** The pages. Those with a project are below it in the address. */
export const PAGES = {
  start: 'Start',
  tokens: 'Tokens and applications',
  people: 'People',
  audit: 'Audit and usage',
  matrix: 'Secrets',
  level: 'Level',
  history: 'History',
  keys: 'Keys'
} as const
export type PageName = keyof typeof PAGES
const OF_ORGANIZATION: readonly string[] = ['tokens', 'people', 'audit']
const OF_PROJECT: readonly string[] = ['level', 'history', 'keys']

/** A part of an address without escapes; a malformed one as it is. */
function decoded (part: string): string {
  try { return decodeURIComponent(part) } catch { return part }
}

/** The place of an address: `/console/ORGANIZATION`, `…/-/people`, `…/PROJECT`, `…/PROJECT/-/history/TARGET`. */
export function placeOf (pathname: string): Place {
  const parts = pathname.slice(HOME.length + 1).split('/').filter((part) => part !== '')
  const [organization = '', second = '', ...rest] = parts.map(decoded)
  const nowhere = { organization, project: '', target: undefined, environment: undefined }
  if (second === '') return { ...nowhere, page: 'start' }
  if (second === '-') {
    return { ...nowhere, page: OF_ORGANIZATION.includes(rest[0] ?? '') ? rest[0] as PageName : 'start' }
  }
  const page = rest[0] === '-' && OF_PROJECT.includes(rest[1] ?? '') ? rest[1] as PageName : 'matrix'
  return { page, organization, project: second, target: rest[2], environment: rest[3] }
}

export function pathOf ({ page, organization, project, target, environment }: Partial<Place>): string {
  const parts = page === undefined || page === 'start'
    ? [organization]
    : OF_ORGANIZATION.includes(page)
      ? [organization, '-', page]
      : page === 'matrix' ? [organization, project] : [organization, project, '-', page, target, environment]
  const path = parts.filter((part) => part !== undefined && part !== '').map((part) => encodeURIComponent(part!)).join('/')
  return path === '' ? HOME : `${HOME}/${path}`
}

export const place = signal<Place>(placeOf(HOME))

export function go (to: Partial<Place>) { history.pushState(null, '', pathOf(to)); arrive() }

/** Shows the page of the current address. */
export function arrive () { place.value = placeOf(location.pathname); window.scrollTo(0, 0) }

window.addEventListener('popstate', arrive)
