import type { ComponentChildren } from 'preact'
import { call } from '../api.ts'
import { kindOf, levelOf, titleOf, type Level } from '../levels.ts'
import { can, type Project } from '../rights.ts'
import { go } from '../router.ts'
import type { At } from '../secrets.tsx'
import { Danger, Field, Form, Help, saying, Section, To, changed, type Fields } from '../ui.tsx'

const STATUSES = [['development', 'Development'], ['staging', 'Staging'], ['production', 'Production'], ['local', 'Local']] as const

export function SettingsPage ({ level: { organization, project: slug }, project }: At) {
  const { name, levels } = project
  const path = { organization, project: slug }
  const targets = levels.filter(({ level, target }) => level === 'target' && can(['environment:create'], { project: slug, target: target! }))
  const rename = async ({ name = '' }: Fields) =>
    saying(call('updateProject', { path, body: { name } }), `The project is called ${name} now.`)
  const remove = async () => {
    await call('deleteProject', { path, dangerous: ['project:delete'] })
    go({ organization })
    changed(`Deleted the project ${name}.`)
  }
  const addTarget = async ({ name = '' }: Fields) => saying(call('createTarget', { path, body: { name } }), `Added the target ${name}.`)
  const addEnvironment = async ({ name = '', target = '', status = 'development' }: Fields) => saying(
    call('createEnvironment', { path: { ...path, target }, body: { name, status } }),
    `Added the environment ${name} to ${titleOf({ ...path, target })}.`
  )
  return (
    <>
      <Section title='Levels'>
        <Help text='A project, its targets and their environments are levels. A deeper level inherits the names of the levels above, and can override them.' />
        <LevelTree project={project} tool={(level) => level.target !== undefined && <DeleteLevel level={level} />} />
      </Section>
      <Section title='Add a target' of='target.create'>
        <Help text='A target is a part of a project that is deployed by itself, such as a service or an app.' />
        <Form name='target.create' run={addTarget}><Field label='Name of the target' name='name' required /></Form>
      </Section>
      {targets.length > 0 && (
        <Section title='Add an environment'>
          <Help text='An environment is a stage of a target, such as live or test.' />
          <Form name='environment.create' run={addEnvironment} at={{ project: slug, target: targets[0]!.target! }}>
            <Field label='Target' name='target' options={targets.map(({ target, name }) => [target!, name])} />
            <Field label='Name of the environment' name='name' required />
            <Field label='Status' name='status' options={STATUSES} />
          </Form>
        </Section>
      )}
      <Section title='Name of the project' of='project.rename'>
        <Form key={name} name='project.rename' run={rename}><Field label='Name of the project' name='name' value={name} required /></Form>
      </Section>
      <Section title='Delete the project' of='project.delete'>
        <Danger name='project.delete' title={`Delete ${name}?`} run={remove}>
          <p>This deletes all levels of {name} with their secrets and histories. It cannot be undone.</p>
        </Danger>
      </Section>
    </>
  )
}

export const LevelTree = ({ project, tool }: { project: Project, tool?: (level: Level) => ComponentChildren }) => (
  <ul class='tree'>
    {project.levels.map((column) => (
      <li key={column.id} class={column.level}>
        <To to={{ page: 'level', ...levelOf(project, column) }}>{column.name}</To>
        <span class='soft'>{column.level}{column.status !== null && `, ${column.status}`}{column.etag === null ? ', empty' : column.version === null ? '' : `, version ${column.version}`}</span>
        {tool?.(levelOf(project, column))}
      </li>
    ))}
  </ul>
)

function DeleteLevel ({ level }: { level: Level }) {
  const { organization, project, target = '', environment = '' } = level
  const title = titleOf(level)
  const path = { organization, project, target, environment }
  const isTarget = kindOf(level) === 'target'
  if (!can([isTarget ? 'target:delete' : 'environment:delete'], level)) return null
  const remove = async () => saying(isTarget ? call('deleteTarget', { path }) : call('deleteEnvironment', { path }), `Deleted ${title}.`)
  return (
    <Danger name='level.delete' title={`Delete ${title}?`} run={remove} description={title}>
      <p>This deletes {title} with its secrets and its history. It cannot be undone.</p>
    </Danger>
  )
}
