import { render } from 'preact'
import './style.css'

render(<h1>Strongroom</h1>, document.getElementById('console')!)
