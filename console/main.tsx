import './style.css'
import { signal } from '@preact/signals'
import { render } from 'preact'
import { useEffect, useRef } from 'preact/hooks'
import { forgetKeys } from './held-keys.ts'
import { BASE, signInQuestion, signOut, start, waiting } from './auth.ts'
import { arrive, PAGES, place, type PageName } from './router.ts'
import { loadPerson, membership, memberships, person, roleName } from './session.ts'
import { Act, Curl, Dialog, messageOf, notice, Problem, Progress, To } from './ui.tsx'
import { AuditPage } from './pages/audit.tsx'
import { HistoryPage } from './pages/history.tsx'
import { KeysPage } from './pages/keys.tsx'
import { LevelPage } from './pages/level.tsx'
import { MatrixPage } from './pages/matrix.tsx'
import { PeoplePage } from './pages/people.tsx'
import { StartPage } from './pages/start.tsx'
import { TokensPage } from './pages/tokens.tsx'

const VIEWS = {
  start: StartPage,
  tokens: TokensPage,
  people: PeoplePage,
  audit: AuditPage,
  matrix: MatrixPage,
  level: LevelPage,
  history: HistoryPage,
  keys: KeysPage
} as const satisfies Record<PageName, unknown>

type State = { is: 'starting' } | { is: 'ready' } | { is: 'signed in' | 'signed out' } | { is: 'failed', message: string }
const state = signal<State>({ is: 'starting' })

function App () {
  const now = state.value
  if (now.is === 'starting') return <><main><Progress text='Signing in…' /></main><Messages /></>
  if (now.is === 'ready') return <Frame />
  return (
    <main>
      <h1>{{ failed: 'The console could not start', 'signed in': 'Go back to the console', 'signed out': 'You are signed out' }[now.is]}</h1>
      {now.is === 'failed' && <Problem error={now.message} />}
      {now.is === 'signed in' && <p>This window belongs to a sign-in of the console. Close it.</p>}
      <p><a href={`${BASE.pathname}console/`}>Sign in to the console</a></p>
    </main>
  )
}

function Frame () {
  const at = place.value
  const key = JSON.stringify(at)
  const main = useRef<HTMLElement>(null)
  const isFirst = useRef(true)
  useEffect(() => {
    document.title = [PAGES[at.page], at.environment, at.target, at.project, at.organization, 'Strongroom']
      .filter((part) => part !== undefined && part !== '').join(' · ')
    // On a phone, the rows of the header scroll.
    for (const link of document.querySelectorAll('.top [aria-current]')) link.scrollIntoView({ block: 'nearest', inline: 'center' })
    // A screen reader reads the new page; the first page was announced by the browser.
    if (!isFirst.current) main.current?.focus()
    isFirst.current = false
  }, [key])
  const View = VIEWS[at.page]
  return (
    <>
      <a class='skip' href='#content' onClick={(event) => { event.preventDefault(); main.current?.focus() }}>Skip to the content</a>
      <Header />
      <main id='content' ref={main} tabIndex={-1}>
        <View key={key} {...at} />
        <Curl />
      </main>
      <Messages />
    </>
  )
}

async function leave () {
  await signOut()
  forgetKeys()
  state.value = { is: 'signed out' }
}

function Header () {
  const { page, organization, project, target, environment } = place.value
  const level = { organization, project, target, environment }
  const pages = (names: readonly PageName[]) => names.map((name) => (
    <li key={name}><To to={{ page: name, organization, project: '', ...(project !== '' && OF_LEVEL.has(name) && level) }} current={page === name}>{PAGES[name]}</To></li>
  ))
  return (
    <header class='top'>
      <nav aria-label='Organization'>
        <ul>
          <li><To to={{}}>Strongroom</To></li>
          {organization !== '' && <li><To to={{ organization }} current={page === 'start'}>{membership.value?.name ?? organization}</To></li>}
          {organization !== '' && pages(['people', 'tokens', 'audit'])}
        </ul>
      </nav>
      <div class='me'>
        <span>{person.value?.name}{membership.value?.role !== undefined && `, ${roleName(membership.value.role)}`}</span>
        <a href={`${BASE.pathname}account`}>Account</a>
        <Act name='sign-out' kind='plain' run={leave} />
      </div>
      {project !== '' && (
        <nav aria-label='Project' class='project'>
          <ul>
            <li><To to={{ page: 'matrix', organization, project }} current={page === 'matrix'}>{project}: all levels</To></li>
            {target !== undefined && <li><To to={{ page: 'level', organization, project }}>Project document</To></li>}
            {environment !== undefined && <li><To to={{ page: 'level', organization, project, target }}>{target}</To></li>}
            <li><To to={{ page: 'level', ...level }} current={page === 'level'}>{environment ?? target ?? 'Project document'}</To></li>
            {pages(['history', 'keys'])}
          </ul>
        </nav>
      )}
    </header>
  )
}
const OF_LEVEL = new Set<PageName>(['history', 'keys'])

/** What happened, what waits, and the question to sign in again. */
function Messages () {
  const said = notice.value
  const question = signInQuestion.value
  return (
    <>
      <div class='messages' role='status' aria-live='polite'>
        {waiting.value > 0 && <p>Too many requests for now. The page continues in {waiting.value} s.</p>}
        {said !== null && (
          <p>
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
    if (place.value.organization === '' && only !== undefined && memberships.value.length === 1) {
      history.replaceState(null, '', `${location.pathname.replace(/\/$/, '')}/${encodeURIComponent(only.slug)}`)
      arrive()
    }
    state.value = { is: 'ready' }
  } catch (error) {
    state.value = { is: 'failed', message: messageOf(error) }
  }
}

main()
