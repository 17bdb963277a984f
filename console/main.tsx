import './style.css'
import { signal } from '@preact/signals'
import { render } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { ApiError } from './api.ts'
import { forgetKeys } from './held-keys.ts'
import { BASE, signInQuestion, signOut, start, waiting } from './auth.ts'
import { Crumbs, SideBar, Tabs } from './layout.tsx'
import { titleOf } from './levels.ts'
import { areKnown, loadRights, projectOf, shownProject } from './rights.ts'
import { arrive, go, PAGES, place, sought, type PageName, type Place } from './router.ts'
import { loadPerson, membership, memberships, person } from './session.ts'
import { Act, Curl, Dialog, messageOf, Missing, notice, Problem, Progress, Show, useLoad } from './ui.tsx'
import { AuditPage } from './pages/audit.tsx'
import { HistoryPage } from './pages/history.tsx'
import { KeysPage } from './pages/keys.tsx'
import { LevelPage } from './pages/level.tsx'
import { MatrixPage } from './pages/matrix.tsx'
import { PeoplePage } from './pages/people.tsx'
import { SettingsPage } from './pages/settings.tsx'
import { StartPage } from './pages/start.tsx'
import { TokensPage } from './pages/tokens.tsx'
import { UsagePage } from './pages/usage.tsx'
import { WorkloadsPage } from './pages/workloads.tsx'

const OF_ORGANIZATION = {
  start: StartPage, people: PeoplePage, tokens: TokensPage, workloads: WorkloadsPage, audit: AuditPage, usage: UsagePage
} as const
const OF_PROJECT = {
  matrix: MatrixPage, level: LevelPage, history: HistoryPage, keys: KeysPage, settings: SettingsPage
} as const satisfies Record<Exclude<PageName, keyof typeof OF_ORGANIZATION>, unknown>

type State = { is: 'starting' } | { is: 'ready' } | { is: 'signed in' | 'signed out' } | { is: 'failed', message: string }
const state = signal<State>({ is: 'starting' })

function App () {
  const now = state.value
  if (now.is === 'starting') return <><main><Progress text='Signing in…' /></main><Messages /></>
  if (now.is === 'ready') return <Frame />
  return (
    <main class='alone'>
      <h1>{{ failed: 'The console could not start', 'signed in': 'Go back to the console', 'signed out': 'You are signed out' }[now.is]}</h1>
      {now.is === 'failed' && <Problem error={now.message} />}
      {now.is === 'signed in' && <p>This window belongs to a sign-in of the console. Close it.</p>}
      <p><a href={`${BASE.pathname}console/`}>Sign in to the console</a></p>
    </main>
  )
}

function Frame () {
  const at = place.value
  const main = useRef<HTMLElement>(null)
  const isFirst = useRef(true)
  useEffect(() => {
    // A screen reader reads the new page; the first page was announced by the browser.
    if (!isFirst.current) main.current?.focus()
    isFirst.current = false
  }, [JSON.stringify(at)])
  const names = [shownProject.value?.name ?? at.project, membership.value?.name ?? at.organization]
  const title = [at.page === 'unknown' ? 'Not found' : PAGES[at.page], ...at.target === undefined ? [] : [titleOf(at)], ...names, 'Strongroom'].filter(Boolean).join(' · ')
  useEffect(() => { document.title = title }, [title])
  return (
    <div class='frame'>
      <a class='skip' href='#content' onClick={(event) => { event.preventDefault(); main.current?.focus() }}>Skip to the content</a>
      <SideBar leave={leave} />
      <Crumbs />
      <main id='content' ref={main} tabIndex={-1}>
        <Content {...at} />
        <Curl />
      </main>
      <Messages />
    </div>
  )
}

/** The heading of a page, also while the page loads. */
function PageHead ({ page, project, ...level }: Place) {
  const name = PAGES[page as PageName]
  if (project === '') return <div class='head'><h1>{page === 'start' ? membership.value?.name ?? 'Your organizations' : name}</h1></div>
  const title = titleOf({ project, ...level })
  return <div class='head of-project'><h1>{page === 'level' ? title : `${name} of ${title}`}</h1><Tabs /></div>
}

/** The page. An address that leads nowhere says so before anything else. */
function Content (at: Place) {
  const { page, organization, project } = at
  const id = person.value!.id
  const role = membership.value?.role
  const load = async () => { if (role !== undefined) await loadRights(organization, id, role) }
  const loaded = useLoad(load, [organization, role])
  if (organization !== '' && role === undefined) {
    return <Missing what={`There is no organization ${organization}, or you are not a member of it.`} back='Your organizations' to={{}} />
  }
  if (page === 'unknown') {
    return <Missing what='There is no such page.' back={project === '' ? 'Projects of the organization' : 'Secrets of the project'} to={{ page: project === '' ? 'start' : 'matrix', organization, project }} />
  }
  const isReady = organization === '' || areKnown(organization)
  if (isReady && page in OF_PROJECT) return <ProjectContent key={`${organization}/${project}`} {...at} />
  const View = OF_ORGANIZATION[page as keyof typeof OF_ORGANIZATION]
  return (
    <>
      <PageHead {...at} />
      {isReady ? <View key={page} organization={organization} /> : <Show of={loaded}>{() => <Progress />}</Show>}
    </>
  )
}

function ProjectContent (at: Place) {
  const { page, organization, project: slug, target, environment } = at
  const level = { organization, project: slug, target, environment }
  const loaded = useLoad(async () => (shownProject.value = await projectOf(organization, slug)), [])
  useEffect(() => () => { shownProject.value = undefined }, [])
  if (loaded.error instanceof ApiError && [403, 404].includes(loaded.error.status)) {
    return <Missing what={`There is no project ${slug} here, or you have no access to it.`} back='All projects' to={{ organization }} />
  }
  const { value: project } = loaded
  const isKnown = project === undefined || project.next !== null || (page !== 'level' && page !== 'history') ||
    project.levels.some((one) => one.target === (target ?? null) && one.environment === (environment ?? null))
  if (!isKnown) {
    const what = target === undefined ? 'You have no access to the document of the project.' : `There is no level ${[target, environment].filter(Boolean).join(' / ')} in ${project.name}, or you have no access to it.`
    return <Missing what={what} back={`Secrets of ${project.name}`} to={{ ...level, page: 'matrix' }} />
  }
  const View = OF_PROJECT[page as keyof typeof OF_PROJECT]
  const key = JSON.stringify([page, target, environment, sought.value])
  return (
    <>
      <PageHead {...at} />
      <Show of={loaded}>{(project) => <View key={key} level={level} project={project} />}</Show>
    </>
  )
}

async function leave () {
  await signOut()
  forgetKeys()
  state.value = { is: 'signed out' }
}

/** What happened, what waits, and the question to sign in again. */
function Messages () {
  const said = notice.value
  const question = signInQuestion.value
  return (
    <>
      <div class='messages' role='status' aria-live='polite'>
        {waiting.value > 0 && <p>Too many requests for now. The page continues in {waiting.value} s.</p>}
        {said !== null && (
          <p class={said.isError ? 'problem' : ''} role={said.isError && 'alert'}>
            <span>{said.text}</span>
            {said.undo !== undefined && <Act name='undo' run={said.undo} />}
            <button type='button' class='plain' onClick={() => { notice.value = null }}>Close message</button>
          </p>
        )}
      </div>
      {question !== null && (
        <Dialog title='Sign in again' close={question.cancel}>
          <p>
            {question.isDangerous
              ? 'This action needs a sign-in of the last five minutes.'
              : 'Your sign-in has ended.'} A window opens; this page stays as it is.
          </p>
          <div class='actions'>
            <button type='button' class='main' onClick={question.open}>Open the sign-in</button>
            <button type='button' onClick={question.cancel}>Cancel</button>
          </div>
        </Dialog>
      )}
    </>
  )
}

async function main () {
  render(<App />, document.getElementById('console')!)
  try {
    const result = await start()
    if (result === 'signed in' || result === 'signed out') state.value = { is: result }
    if (result !== 'ready') return
    await loadPerson()
    const [only] = memberships.value
    arrive()
    if (place.value.organization === '' && memberships.value.length === 1) go({ organization: only!.slug }, 'replaceState')
    state.value = { is: 'ready' }
  } catch (error) {
    state.value = { is: 'failed', message: messageOf(error) }
  }
}

main()
