import {
  ChevronRight, KeyRound, Layers, Menu, ScrollText, Search as Loupe, TrendingUp, User, Users, Vault, Workflow,
  type IconNode
} from 'lucide'
import { useEffect, useState } from 'preact/hooks'
import { call, type Answer, type Schemas } from './api.ts'
import { BASE } from './auth.ts'
import { Icon } from './icons.tsx'
import { levelOf, levelPath, nameOf } from './levels.ts'
import { areKnown, can, canSomewhere, onlyLevelOf, rights, shownProject } from './rights.ts'
import { isMenuOpen, PAGES, place, sought, type PageName } from './router.ts'
import type { Ability } from './scopes.ts'
import { membership, memberships, person, roleName } from './session.ts'
import { Act, Dialog, Empty, Field, Form, may, To, type Fields } from './ui.tsx'
import { shownName } from './values.ts'

// What surrounds each page: the side bar, the path to the place, and the search for names.

const ENTRIES = [
  ['start', Layers, 'organization:read'], ['people', Users, 'member:read'], ['tokens', KeyRound, 'api-token:read'],
  ['workloads', Workflow, 'api-token:read'], ['audit', ScrollText, 'project:read'], ['usage', TrendingUp, 'billing:read']
] as const satisfies readonly (readonly [PageName, IconNode, Ability])[]

export function SideBar ({ leave }: { leave: () => Promise<void> }) {
  const { page, organization } = place.value
  const chosen = membership.value
  const others = memberships.value.filter(({ slug }) => slug !== organization)
  const scopes = areKnown(organization) ? rights.value!.scopes : []
  return (
    <aside class={isMenuOpen.value ? 'side open' : 'side'} id='side' onKeyDown={({ key }) => { if (key === 'Escape') isMenuOpen.value = false }}>
      <To to={{}} more={{ class: 'brand' }}><Icon of={Vault} />Strongroom</To>
      {others.length > 0 && chosen !== undefined && (
        <details>
          <summary>{chosen.name}<span class='hidden'>: other organizations</span></summary>
          <ul>
            {others.slice(0, 20).map(({ slug, name }) =>
              <li key={slug}><To to={{ organization: slug }}>{name}</To></li>)}
          </ul>
        </details>
      )}
      {chosen !== undefined && (
        <nav aria-label='Organization'>
          <ul>
            {ENTRIES.filter(([, , scope]) => scopes?.includes(scope) ?? true).map(([name, icon]) => (
              <li key={name}>
                <To to={{ page: name, organization }} current={page === name}><Icon of={icon} />{PAGES[name]}</To>
              </li>
            ))}
          </ul>
        </nav>
      )}
      <div class='me'>
        <p>{person.value?.name}{chosen?.role !== undefined && `, ${roleName(chosen.role)}`}</p>
        <a href={`${BASE.pathname}account`}><Icon of={User} />Account</a>
        <Act name='sign-out' kind='plain' run={leave} />
      </div>
    </aside>
  )
}

export function Crumbs () {
  const { page, organization, project, target, environment } = place.value
  const name = membership.value?.name
  const levels = [{ project }, { project, target }, { project, target, environment }]
    .slice(0, project === '' ? 0 : [target, environment].filter((part) => part !== undefined).length + 1)
  const steps = [
    ...name === undefined ? [] : [[name, { organization }] as const],
    ...levels.map((level, i) => [nameOf(level), { page: i === 0 ? 'matrix' : 'level', organization, ...level }] as const)
  ]
  const isLast = project === '' ? page === 'start' : page === 'matrix' || page === 'level'
  return (
    <header class='top'>
      <button type='button' class='plain icon-button menu' aria-expanded={isMenuOpen.value} aria-controls='side' onClick={() => { isMenuOpen.value = !isMenuOpen.value }}>
        <Icon of={Menu} /><span class='hidden'>Menu</span>
      </button>
      <nav aria-label='Place'>
        <ol>
          {steps.map(([text, to], i) => (
            <li key={i}>
              {i > 0 && <Icon of={ChevronRight} />}
              {/* A level above can be one that the person has no access to. */}
              {i === 2 && environment !== undefined && !canSeeLevel({ project, target })
                ? <span title={text}>{text}</span>
                : <To to={to} current={isLast && i === steps.length - 1} more={{ title: text }}>{text}</To>}
            </li>
          ))}
        </ol>
      </nav>
      {name !== undefined && canSomewhere(['secret:read', 'secret:decrypt']) && <Search key={organization} organization={organization} />}
    </header>
  )
}

const canSeeLevel = (at: { project: string, target?: string | undefined }) => can(['secret:read'], at) || can(['secret:history'], at)

export function Tabs () {
  const { page, organization, project, target, environment } = place.value
  const at = { organization, project, target, environment }
  const tabs = [
    ['matrix', PAGES.matrix, shownProject.value === undefined || onlyLevelOf(shownProject.value) === undefined],
    ['level', target === undefined ? 'Project document' : nameOf(at), canSeeLevel(at)],
    ['history', PAGES.history, can(['secret:history'])],
    ['keys', PAGES.keys, can(['key:retrieve'], { project })],
    ['settings', PAGES.settings, (['project.rename', 'project.delete', 'target.create'] as const).some((name) => may(name, { project })) ||
      shownProject.value?.levels.some(({ level, target }) => level === 'target' && can(['environment:create'], { project, target: target! }))]
  ] as const
  // On a phone, the tabs scroll.
  useEffect(() => document.querySelector('.tabs [aria-current]')?.scrollIntoView({ block: 'nearest', inline: 'nearest' }))
  const shown = tabs.filter(([, , isShown]) => isShown && areKnown(organization))
  if (shown.length < 2) return null
  return (
    <nav aria-label='Project' class='tabs'>
      <ul>
        {shown.map(([name, text]) => (
          <li key={name}><To to={{ ...at, page: name }} current={page === name}>{text}</To></li>
        ))}
      </ul>
    </nav>
  )
}

type Found = Schemas['FoundName']

/** One search over all projects. It asks on Enter, because each search is in the audit log. */
function Search ({ organization }: { organization: string }) {
  const [isOpen, setOpen] = useState(false)
  const [results, setResults] = useState<{ search: string, found: Found[], meta: Answer<'searchNames'>['meta'] }>()
  const close = () => { setOpen(false); setResults(undefined) }
  useEffect(() => {
    const open = (event: KeyboardEvent) => {
      const { target, key, ctrlKey, metaKey, altKey } = event
      if (key !== '/' || ctrlKey || metaKey || altKey || (target as Element).matches('input, textarea, select') || document.querySelector('dialog[open]')) return
      event.preventDefault()
      setOpen(true)
    }
    document.addEventListener('keydown', open)
    return () => document.removeEventListener('keydown', open)
  }, [])
  const find = async (search: string, after?: string) => {
    const { data: { data, meta } } = await call('searchNames', { path: { organization }, query: { search, ...(after !== undefined && { after }) } })
    setResults({ search, found: [...after === undefined ? [] : results!.found, ...data], meta })
  }
  return (
    <>
      <button type='button' class='search' aria-keyshortcuts='/' onClick={() => setOpen(true)}>
        <Icon of={Loupe} /><span>Search names</span> <kbd aria-hidden='true'>/</kbd>
      </button>
      {isOpen && (
        <Dialog title='Search names' close={close}>
          <Form name='search.names' keep run={async ({ search = '' }: Fields) => find(search)}>
            <Field label='Names that contain' name='search' type='search' required hint='In all projects whose key the server holds. Each search is in the audit log.' />
          </Form>
          {results !== undefined && (
            <div role='status'>
              {results.found.length === 0 && results.meta.next === null &&
                <Empty>No name contains {results.search}.</Empty>}
              <ul class='list results'>
                {results.found.map(({ attributes: { name, project, target, environment, ...names } }) => {
                  const level = levelOf({ organization, slug: project }, { target, environment })
                  return (
                    <li key={`${levelPath(level)} ${name}`} onClick={() => { sought.value = name; close() }}>
                      <To to={{ page: 'level', ...level }}><code>{shownName(name)}</code> <span>{[names.project_name, names.target_name, names.environment_name].filter(Boolean).join(' / ')}</span></To>
                    </li>
                  )
                })}
              </ul>
              {results.meta.client_managed > 0 &&
                <p class='hint'>Projects whose key only your people hold are not searched.</p>}
              {results.meta.unreadable > 0 && <p class='hint'>{results.meta.unreadable} documents cannot be read.</p>}
            </div>
          )}
          {results !== undefined && results.meta.next !== null && <Act name='search.more' run={async () => find(results.search, results.meta.next!)} />}
        </Dialog>
      )}
    </>
  )
}
