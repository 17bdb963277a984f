import { signal } from '@preact/signals'
import { HOME } from './auth.ts'

// The address has slugs and ids only, never a name of a secret or a value.

export interface Place {
  /** `unknown`: the address names no page. */
  page: PageName | 'unknown'
  organization: string
  project: string
  target: string | undefined
  environment: string | undefined
}

/** The pages. Those with a project are below it in the address. */
export const PAGES = {
  start: 'Projects',
  people: 'People',
  tokens: 'Tokens',
  workloads: 'Workloads',
  audit: 'Audit',
  usage: 'Usage',
  matrix: 'Secrets',
  level: 'Level',
  history: 'History',
  keys: 'Keys',
  settings: 'Settings'
} as const
export type PageName = keyof typeof PAGES
const OF_ORGANIZATION: readonly string[] = ['people', 'tokens', 'workloads', 'audit', 'usage']
const OF_PROJECT: readonly string[] = ['level', 'history', 'keys', 'settings']
const OF_LEVEL: readonly string[] = ['level', 'history']

/** A part of an address without escapes; a malformed one as it is. */
const decoded = (part: string): string => { try { return decodeURIComponent(part) } catch { return part } }

/** The place of an address: `/console/ORGANIZATION`, `…/-/people`, `…/PROJECT`, `…/PROJECT/-/history/TARGET`. */
export function placeOf (pathname: string): Place {
  const parts = pathname.slice(HOME.length + 1).split('/').filter((part) => part !== '')
  const [organization = '', second = '', ...rest] = parts.map(decoded)
  const nowhere = { organization, project: '', target: undefined, environment: undefined }
  const known = (pages: readonly string[], name = '') => pages.includes(name) ? name as PageName : 'unknown'
  if (second === '') return { ...nowhere, page: 'start' }
  if (second === '-') return { ...nowhere, page: rest.length === 1 ? known(OF_ORGANIZATION, rest[0]) : 'unknown' }
  const at = { ...nowhere, project: second }
  const [dash, page = '', target, environment, more] = rest
  if (dash === undefined) return { ...at, page: 'matrix' }
  if (dash !== '-' || more !== undefined || (target !== undefined && !OF_LEVEL.includes(page))) return { ...at, page: 'unknown' }
  return { ...at, page: known(OF_PROJECT, page), target, environment }
}

export function pathOf ({ page, organization, project, target, environment }: Partial<Place>): string {
  const parts = page === undefined || page === 'start'
    ? [organization]
    : OF_ORGANIZATION.includes(page)
      ? [organization, '-', page]
      : page === 'matrix' ? [organization, project] : [organization, project, '-', page, ...OF_LEVEL.includes(page) ? [target, environment] : []]
  const path = parts.filter((part) => part !== undefined && part !== '').map((part) => encodeURIComponent(part!)).join('/')
  return path === '' ? HOME : `${HOME}/${path}`
}

export const place = signal<Place>(placeOf(HOME))
/** The name of a secret that the page of a level shows first, after a search. */
export const sought = signal('')
/** On a phone, where the side bar is a menu. */
export const isMenuOpen = signal(false)

/** Goes to a page. `replaceState`: the way back leads past the present one. */
export function go (to: Partial<Place>, how: 'pushState' | 'replaceState' = 'pushState') {
  history[how](null, '', pathOf(to))
  arrive()
}

export function arrive () {
  sought.value = ''
  isMenuOpen.value = false
  place.value = placeOf(location.pathname)
  window.scrollTo(0, 0)
}

window.addEventListener('popstate', arrive)
