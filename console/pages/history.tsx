import { useEffect, useRef, useState } from 'preact/hooks'
import { call, firstPages, type Schemas } from '../api.ts'
import { hasNameHistory, NameHistory, sayChanged } from '../cell.tsx'
import { Difference } from '../difference.tsx'
import { authorOf, callLevel, changesBetween, inHistory, kindOf, levelOf, levelPath, nameOf, restoreBody, titleOf, type Level } from '../levels.ts'
import type { Project } from '../rights.ts'
import { conceal, KeyGate, reveal, revealed, Secret, type At } from '../secrets.tsx'
import { Act, changed, Changes, Check, Danger, Empty, Field, Form, Help, instantOf, saying, Section, Show, sizeOf, Table, Time, useLoad, type Fields } from '../ui.tsx'
import { present, shownName, type Comparison } from '../values.ts'

type Version = Schemas['Version']
interface RestorePlan { names: Comparison | null, etag: string | null, isNothing: boolean }
const PER_PAGE = 25

export function HistoryPage ({ level, project }: At) {
  const whole = { organization: level.organization, project: level.project }
  return (
    <>
      <KeyGate level={level} project={project} />
      <Versions level={level} project={project} />
      {hasNameHistory(project)
        ? <><NameSection level={level} project={project} /><Moment level={level} /></>
        : <p class='hint'>The history of a name and the names at a time are not available, because {project.isClient ? 'the server cannot read the documents of this project' : 'documents of the format text have no names'}.</p>}
      <Section title='Restore the whole project' of='restore-to.preview' at={whole}><RestoreProject level={whole} /></Section>
      <Section title='Purge' of='history.purge'>
        <Danger name='history.purge' title={`Purge the history of ${titleOf(level)}?`} run={() => purge(level)}>
          <p>All versions of this {kindOf(level)} are deleted. The present document stays. It cannot be undone.</p>
        </Danger>
      </Section>
    </>
  )
}

const ACTION_WORDS: Record<Version['attributes']['action'], string> = {
  create: 'Created', update: 'Changed', delete: 'Deleted', restore: 'Restored', rotate: 'Key rotated', re_encrypt: 'Encrypted again'
}

function Versions ({ level, project }: At) {
  const [pages, setPages] = useState(1)
  const [chosen, setChosen] = useState<readonly string[]>([])
  const versions = useLoad(async () => firstPages(async (page) => versionsOf(level, page), pages), [pages])
  const choose = (id: string, isChosen: boolean) =>
    setChosen(isChosen ? [...chosen, id].slice(-2) : chosen.filter((one) => one !== id))
  const [from, to] = [...chosen].sort((a, b) => Number(a) - Number(b))
  return (
    <Section title='Versions'>
      <Help text='The plan says how many days a version stays available. An older version is locked: it is listed, but not shown.' />
      {from !== undefined && to !== undefined && <Compare key={`${from} ${to}`} level={level} project={project} from={from} to={to} />}
      <Show of={versions}>
        {({ found, total }) => (
          <>
            {total === 0 && <Empty>This level has no versions yet. The first change records one.</Empty>}
            <ol class='timeline'>
              {found.map((version, i) => (
                <VersionItem
                  key={version.id} version={version} before={found[i + 1]?.id} level={level} project={project}
                  isChosen={chosen.includes(version.id)} choose={(isChosen) => choose(version.id, isChosen)}
                />
              ))}
            </ol>
            {found.length < total && <Act name='history.more' run={() => setPages(pages + 1)} />}
          </>
        )}
      </Show>
    </Section>
  )
}

function VersionItem ({ version: { id, attributes: version }, before, level, project, isChosen, choose }: At & {
  version: Version, before: string | undefined, isChosen: boolean, choose: (isChosen: boolean) => void
}) {
  const [plan, setPlan] = useState<RestorePlan>()
  const [names, setNames] = useState<{ found: Comparison | null }>()
  const path = { organization: level.organization, version: id }
  const open = async () => setNames(names === undefined ? { found: await namesOf() } : undefined)
  /** The service tells the names, or the browser if only clients have the key. */
  const namesOf = async (): Promise<Comparison | null> => {
    if (project.isClient) return before === undefined ? null : changesBetween(level, before, id, true, project.format)
    const { added, changed, removed } = (await call('readVersionNames', { path })).data.data.attributes
    return added && changed && removed && { added, changed, removed }
  }
  const restore = async () => {
    const body = await restoreBody(level, id, project.isClient)
    const { etag } = await call('restoreVersion', { path, body, etag: plan!.etag })
    sayChanged(`Restored version ${id} of ${titleOf(level)}.`, level, etag, project.isClient)
  }
  return (
    <li class={version.locked ? 'locked' : ''}>
      <p>
        <strong>{ACTION_WORDS[version.action]}</strong> <Time at={version.created_at} /> by {authorOf(version)}
        <span class='soft'> version {id}, {sizeOf(version.size_bytes)}{version.metadata.restored_from !== null && `, from version ${version.metadata.restored_from}`}</span>
      </p>
      {version.locked
        ? <p class='hint'>Locked: {version.locked_reason ?? 'it is older than the days of the plan'}.</p>
        : (
          <div class='actions'>
            <Act name='version.open' kind='plain' description={`that version ${id} changed`} more={{ 'aria-expanded': names !== undefined }} run={open} />
            <Act name='version.preview' kind='plain' description={id} run={async () => setPlan(await planRestore(level, project, id))} />
            <Check name='version' value={id} label={`Compare version ${id}`} checked={isChosen} onChange={choose} />
          </div>
          )}
      {names !== undefined && <Changes of={names.found} />}
      {plan !== undefined && (
        <div class='preview'>
          <p>Restoring version {id} changes {titleOf(level)}:</p>
          {plan.isNothing ? <p>Nothing: the level is like this already.</p> : <Changes of={plan.names} />}
          <Act name='version.restore' kind='main' description={id} run={restore} />
        </div>
      )}
    </li>
  )
}

/** What a restore would change: the service tells, or the browser if only clients have the key. */
async function planRestore (level: Level, project: Project, version: string): Promise<RestorePlan> {
  const body = await restoreBody(level, version, project.isClient)
  const { data } = await call('restoreVersion', { path: { organization: level.organization, version }, body, query: { dry_run: true } })
  const found = data.dry_run!.levels[0]!
  const [newest] = project.isClient && found.etag !== null ? (await versionsOf(level)).data : []
  const names = newest && await changesBetween(level, newest.id, version, true, project.format)
  return { names: names ?? found.names, etag: found.etag, isNothing: found.change === 'none' }
}

async function versionsOf (level: Level, page = 1) {
  const path = { organization: level.organization }
  return (await call('listVersions', { path, body: { ...inHistory(level), page, per_page: PER_PAGE } })).data
}

function Compare ({ level, project, from, to }: At & { from: string, to: string }) {
  const found = useLoad(async () => changesBetween(level, from, to, project.isClient, project.format), [])
  const result = useRef<HTMLDivElement>(null)
  const source = `${levelPath(level)} ${from} ${to}`
  useEffect(() => () => conceal(source), [])
  useEffect(() => result.current?.scrollIntoView({ block: 'nearest' }), [found.value])
  const showValues = async () => {
    const { data } = await callLevel('compareSecrets', level, { query: { from, to, values: true } })
    reveal(source, (data.data.attributes.values ?? []).flatMap((one) => (['from', 'to'] as const).flatMap((side) => one[side] === undefined ? [] : [[`${side} ${one.name}`, one[side]] as const])))
  }
  return (
    <div class='preview' ref={result} role='status'>
      <h3>From version {from} to version {to}</h3>
      <Show of={found}>
        {(names) => {
          const all = names === null ? [] : [...names.added, ...names.changed, ...names.removed].sort()
          const shown = all.filter((name) => (['from', 'to'] as const).some((side) => revealed(source, `${side} ${name}`) !== undefined))
          return (
            <>
              <Changes of={names} />
              {!project.isClient && all.length > 0 && <Act name='history.reveal' run={showValues} />}
              {shown.length > 0 && (
                <div role='region' aria-label='Values of both versions'>
                  {shown.map((name) => <div key={name}><code>{shownName(name)}</code><Difference before={revealed(source, `from ${name}`)} after={revealed(source, `to ${name}`)} /></div>)}
                </div>
              )}
            </>
          )
        }}
      </Show>
    </div>
  )
}

/** The changes of one name, also of one that the level does not have any more. */
function NameSection ({ level, project }: At) {
  const [name, setName] = useState<string>()
  return (
    <Section title='History of a name' of='history.name'>
      <Form name='history.name' keep run={({ name = '' }) => setName(name)}><Field label='Name' name='name' required /></Form>
      {name !== undefined && <NameHistory key={name} level={level} project={project} name={name} />}
    </Section>
  )
}

/** The names of the level at a moment, compared with the present ones. */
function Moment ({ level }: { level: Level }) {
  const [found, setFound] = useState<{ at: string, names: readonly string[], difference: Comparison }>()
  const show = async ({ at = '' }: Fields) => {
    const from = instantOf(at)
    const { data: { data }, headers } = await callLevel('readNames', level, { query: { merge: true } })
    // The clock of the service, because it refuses a time in the future.
    const to = new Date(headers.get('date') ?? Date.now()).toISOString()
    const difference = (await callLevel('compareSecrets', level, { query: { from, to, merge: true } })).data.data.attributes
    const kept = data.map(({ attributes: { name } }) => name).filter((name) => !difference.added.includes(name))
    setFound({ at: from, names: [...kept, ...difference.removed].sort(), difference })
  }
  const read = (at: string, name: string) => async () => {
    const { data: { data } } = await callLevel('readSecrets', level, { query: { decrypt: true, merge: 'true', at } })
    return present(data.attributes.merged?.[name])
  }
  return (
    <Section title='As it was' of='history.moment'>
      <Help text='Shows the level as it was at a time in the past.' />
      <Form name='history.moment' run={show}><Field label='Time' name='at' type='datetime-local' required /></Form>
      {found !== undefined && (
        <>
          <h3>Names at <Time at={found.at} /></h3>
          <Table
            label='Names at that time' head={['Name', 'Value then']} empty='There were no names then.'
            rows={found.names.map((name) => [name, shownName(name), <Secret source={`at ${found.at}`} name={name} read={read(found.at, name)} />])}
          />
          <p>Since then:</p>
          <Changes of={found.difference} />
        </>
      )}
    </Section>
  )
}

interface ProjectPlan { at: string, levels: Schemas['PlannedLevel'][], more: number }
const levelsOf = ({ levels }: ProjectPlan) =>
  JSON.stringify(levels.map(({ target, environment }) => [target, environment]).sort())

/** Brings all documents of the project back to a moment, with a preview. */
function RestoreProject ({ level: { organization, project } }: { level: Level }) {
  const [plan, setPlan] = useState<ProjectPlan>()
  const path = { organization, project }
  const planTo = async (at: string): Promise<ProjectPlan> => {
    const { data } = await call('restoreProject', { path, body: { at, confirmed: true }, query: { dry_run: true } })
    return { at, levels: data.dry_run!.levels, more: data.dry_run!.more }
  }
  const restoreTo = async (plan: ProjectPlan) => {
    // The plan has the ETags of all levels that the restore changes.
    if (JSON.stringify(await planTo(plan.at)) !== JSON.stringify(plan)) {
      throw new Error('The project has changed meanwhile, so nothing was restored. Preview a restore again.')
    }
    return call('restoreProject', { path, body: { at: plan.at, confirmed: true }, dangerous: ['secret:restore'] })
  }
  const restore = async () => {
    const { levels, more } = plan!
    const first = levels[0]!
    const { data: { message } } = await restoreTo(plan!)
    setPlan(undefined)
    // A restore to the millisecond before this one undoes it.
    const action = first.change === 'delete' ? 'delete' : 'restore'
    const { data } = await versionsOf(levelOf({ organization, slug: project }, first))
    const own = data.find(({ attributes }) => attributes.action === action)
    const undo = own && await planTo(new Date(Date.parse(own.attributes.created_at) - 1).toISOString())
    // Without an undo if somebody else has changed other levels already, or if the plan does not have all levels.
    const isOwn = more === 0 && undo?.more === 0 && levelsOf(undo) === levelsOf(plan!)
    changed(message, isOwn ? async () => { await restoreTo(undo!); changed('Undone: the project is as it was before.') } : undefined)
  }
  return (
    <>
      <p>Brings the documents of all levels of {nameOf({ project })} back to a time. You see first what changes.</p>
      <Form name='restore-to.preview' at={{ project }} run={async ({ at = '' }) => setPlan(await planTo(instantOf(at)))}><Field label='Time of the project' name='at' type='datetime-local' required /></Form>
      {plan !== undefined && (
        <div class='preview'>
          {plan.levels.length === 0 && <p>Nothing changes: all documents are in this state already.</p>}
          {plan.levels.map(({ target, environment, change, names }) => (
            <div key={`${target}/${environment}`}>
              <h3>{titleOf(levelOf({ organization, slug: project }, { target, environment }))}: {change}</h3>
              <Changes of={names} />
            </div>
          ))}
          {plan.more > 0 && <p>And {plan.more} more levels.</p>}
          {plan.levels.length > 0 && <Act name='restore-to.restore' kind='danger' run={restore} />}
        </div>
      )}
    </>
  )
}

const purge = async (level: Level) => saying(call('purgeVersions', {
  path: { organization: level.organization }, body: { ...inHistory(level), confirmed: true }, dangerous: ['secret:purge']
}))
