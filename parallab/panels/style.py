"""How the panels look: JupyterLab's own colours, so that every theme fits, and one accent."""

STYLE = """<style>
.pl-panel { border: 1px solid var(--jp-border-color2, #ddd); border-radius: 6px;
  padding: 12px 16px 10px; max-width: 1260px; box-sizing: border-box;
  color: var(--jp-ui-font-color1, #222); }
.pl-panel .widget-html, .pl-panel .widget-html-content { margin: 0; line-height: normal;
  min-width: 0; }
.pl-panel .widget-html > .widget-html-content { width: 100%; }
.pl-title { font-size: 17px; font-weight: 600; }
.pl-muted, .pl-idea { font-size: 12px; line-height: 17px;
  color: var(--jp-ui-font-color2, #666); }
.pl-idea { min-height: 51px; max-width: 150ch; padding: 3px 0 2px; }
.pl-idea b { font-weight: 400; color: var(--jp-ui-font-color1, #222); }
.pl-label { font-size: 12px; font-weight: 600; line-height: 16px; padding: 7px 0 1px; }
.pl-label span { font-weight: 400; color: var(--jp-ui-font-color2, #666); }
.pl-split { flex-flow: row wrap !important; gap: 0 18px; overflow: visible; }
.pl-panel .pl-split > .pl-field { width: auto; flex: 0 0 auto; max-width: 100%; }
.pl-fields { display: grid !important; gap: 0 10px;
  grid-template-columns: repeat(auto-fill, minmax(116px, 1fr)); }
.pl-fields > .pl-wide { grid-column: span 2; }
.pl-panel .pl-field { overflow: visible; min-width: 0; }
.pl-panel .pl-field input, .pl-panel .pl-field select, .pl-panel .pl-field .widget-text,
.pl-panel .pl-field .widget-dropdown { margin-left: 0; margin-right: 0; min-width: 0; }
.pl-panel .pl-choices { flex-flow: row wrap; gap: 3px; overflow: visible; }
.pl-panel .pl-choice { width: auto; min-width: 34px; margin: 0; padding: 0 9px; height: 27px;
  line-height: 27px; border-radius: 4px; box-shadow: none; font-size: 12.5px; }
.pl-panel .pl-choice.pl-chosen { background: #0072B2; color: #fff; }
.pl-panel .pl-choice:disabled { opacity: .38; cursor: not-allowed; }
.pl-panel .pl-choice.pl-chosen:disabled { opacity: .6; }
.pl-panel .pl-action { width: auto; height: 30px; min-height: 30px; margin: 0; border-radius: 4px; }
.pl-panel .pl-actions { flex-flow: row wrap; gap: 6px; overflow: visible; }
.pl-panel .pl-actions > .pl-action { flex: 0 0 auto !important; padding: 0 9px; }
.pl-packed { border-left: 4px solid var(--jp-border-color2, #ddd); padding: 2px 12px;
  margin: 8px 0 4px; font-size: 13px; }
.pl-packed pre { font-size: 12px; white-space: pre-wrap; }
.pl-packed summary { cursor: pointer; }
.pl-why, .pl-notice { font-size: 12px; line-height: 16px; padding-top: 6px; }
.pl-why:empty, .pl-notice:empty { padding: 0; }
.pl-why { color: var(--jp-error-color1, #c62828); }
.pl-notice { color: var(--jp-ui-font-color2, #666); }
.pl-tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(112px, 1fr)); gap: 8px;
  padding-bottom: 8px; }
.pl-tile { background: var(--jp-layout-color2, #f3f3f3); border-radius: 4px; padding: 5px 7px 6px;
  line-height: 18px; white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.pl-tile b { font-size: 16px; font-weight: 600; font-variant-numeric: tabular-nums; }
.pl-tile span { display: block; font-size: 11px; line-height: 15px;
  color: var(--jp-ui-font-color2, #666); overflow: hidden; text-overflow: ellipsis; }
.pl-panel .pl-quantity .widget-toggle-button { width: auto; padding: 0 10px; height: 24px;
  line-height: 24px; margin: 0 3px 0 0; border-radius: 4px; box-shadow: none; font-size: 12px; }
.pl-panel .pl-quantity .widget-toggle-button.mod-active { background: #0072B2; color: #fff; }
.pl-panel .pl-fig { margin: 0; border-radius: 4px; }
.pl-panel .pl-stale { opacity: .25; }
.pl-panel .pl-progress { width: 42%; height: 14px; margin: 0; }
.pl-panel .pl-progress .progress { height: 14px; margin: 0; top: 0; bottom: 0;
  border-radius: 3px; overflow: hidden; }
.pl-panel .pl-compared { gap: 12px; padding: 4px 0; }
.pl-compared > .widget-html { flex: 1 1 0; }
.pl-compared summary { font-size: 12px; line-height: 28px; cursor: pointer; }
.pl-compared .pl-muted { line-height: 28px; }
.pl-scroll { overflow-x: auto; }
.pl-panel .pl-table { border-collapse: collapse; font-size: 12px; line-height: 17px; width: auto;
  font-variant-numeric: tabular-nums; margin: 2px 0 6px; }
.pl-panel .pl-table th, .pl-panel .pl-table td { padding: 1px 10px 1px 0; text-align: right;
  border: 0; background: none; white-space: nowrap; color: var(--jp-ui-font-color2, #666); }
.pl-panel .pl-table th { font-weight: 600; padding-top: 7px; color: var(--jp-ui-font-color1, #222);
  border-bottom: 1px solid var(--jp-border-color2, #ddd); }
.pl-panel .pl-table .pl-text { text-align: left; }
.pl-panel .pl-table td.pl-text:last-child { white-space: normal; }
.pl-panel .pl-table .pl-differs td { color: var(--jp-ui-font-color1, #222); }
.pl-sum { font-size: 13px; line-height: 19px; padding: 1px 0; }
.pl-too-big { color: var(--jp-error-color1, #c62828); }
.pl-panel .pl-config { margin: 0; width: 100%; }
.pl-panel .pl-config textarea { font: 11px/15px var(--jp-code-font-family, monospace); }
.pl-hidden { display: none !important; }
.pl-lab .jupyter-widgets-disconnected::before { display: none; }
.pl-lab.jupyter-widgets-disconnected::before { display: block; width: auto; color: #c62828;
  content: "The kernel was restarted: run this cell again."; padding: 4px 8px;
  font: 600 13px var(--jp-ui-font-family, sans-serif); }
.pl-lab.jupyter-widgets-disconnected > * { opacity: .5; }
.pl-tabs { display: flex; gap: 2px; padding: 0 6px; overflow: visible; }
.pl-lab .pl-tab { width: auto; margin: 0; padding: 0 14px; height: 30px; line-height: 30px;
  background: none; box-shadow: none; border-bottom: 2px solid transparent; font-size: 13px;
  color: var(--jp-ui-font-color2, #666); }
.pl-lab .pl-tab.pl-tab-open { border-bottom-color: #0072B2; font-weight: 600;
  color: var(--jp-ui-font-color1, #222); }
.pl-rule { font-size: 12.5px; line-height: 18px; padding: 4px 0 8px; max-width: 150ch; }
.pl-rule span { color: var(--jp-ui-font-color2, #666); font-size: 11px; }
.pl-option, .pl-option-head { display: grid; gap: 0 12px; font-size: 12px; line-height: 16px;
  grid-template-columns: 16px minmax(0, 2.2fr) minmax(0, 1.1fr) minmax(0, 1.2fr) minmax(0, 2fr); }
.pl-option-head { font-weight: 600; padding-right: 180px; border-bottom: 1px solid
  var(--jp-border-color2, #ddd); padding-bottom: 3px; }
.pl-panel .pl-option-row { align-items: center; gap: 6px; padding: 5px 0;
  border-bottom: 1px solid var(--jp-border-color3, #eee); }
.pl-option-row > .widget-html { flex: 1 1 0; }
.pl-panel .pl-option-row > .pl-action { flex: 0 0 auto; height: 26px; min-height: 26px;
  line-height: 26px; font-size: 12px; padding: 0 9px; }
.pl-others { font-size: 12px; line-height: 17px; padding-top: 8px; }
.pl-others summary { font-weight: 600; cursor: pointer; }
.pl-panel .pl-others ul { margin: 2px 0 0; padding-left: 18px;
  color: var(--jp-ui-font-color2, #666); }
.pl-panel .pl-open, .pl-panel .pl-take { flex-flow: row wrap; gap: 6px; align-items: center;
  padding: 8px 0 4px; overflow: visible; }
.pl-panel .pl-open > .pl-path { flex: 1 1 200px; width: auto; margin: 0; max-width: 420px; }
/* The button itself would count the files that are selected, after they have been taken. */
.pl-panel .pl-upload { padding: 0 12px; line-height: 30px; font-size: 0; }
.pl-panel .pl-upload i, .pl-panel .pl-upload::after {
  font-size: var(--jp-widgets-font-size, 13px); }
.pl-panel .pl-upload::after { content: "Open saved Reports"; }
.pl-panel .pl-pin-row { align-items: center; gap: 4px; padding: 3px 0; overflow: visible;
  border-bottom: 1px solid var(--jp-border-color3, #eee); }
.pl-pin-row > * { flex: 0 0 auto; }
.pl-panel .pl-pin-row > .pl-pin-name { flex: 0 1 220px; min-width: 110px; margin: 0 4px; }
.pl-panel .pl-pin-row > .widget-html { flex: 1 1 0; }
.pl-panel .pl-pin-row > .pl-action { height: 26px; min-height: 26px; line-height: 26px;
  font-size: 12px; padding: 0 9px; }
.pl-pin-words { font-size: 12px; line-height: 26px; white-space: nowrap; overflow: hidden;
  text-overflow: ellipsis; color: var(--jp-ui-font-color2, #666); }
.pl-source { display: inline-block; min-width: 62px; margin-right: 6px; text-align: center;
  line-height: 18px; border-radius: 3px; background: var(--jp-layout-color2, #eee);
  color: var(--jp-ui-font-color1, #222); }
.pl-between { font-size: 13px; line-height: 20px; padding: 10px 0 2px; overflow-wrap: anywhere; }
.pl-panel dl.pl-changes { display: grid; grid-template-columns: 8.5em minmax(0, 1fr); gap: 4px 10px;
  margin: 2px 0 12px; max-width: 130ch; font-size: 12.5px; line-height: 18px; }
.pl-panel .pl-changes > dt { display: block; font-weight: 600; width: auto; margin: 0; }
.pl-panel .pl-changes > dd { display: block; margin: 0; width: auto; }
.pl-compare summary { font-size: 12px; line-height: 28px; cursor: pointer; }
.pl-panel .pl-take > .pl-action { flex: 0 0 auto; padding: 0 12px; }
.pl-panel a.pl-link { color: var(--jp-content-link-color, #0072B2); text-decoration: underline;
  font-weight: 600; }
.pl-status { font-size: 12px; line-height: 20px; color: var(--jp-ui-font-color2, #666);
  white-space: nowrap; overflow: hidden; text-overflow: ellipsis; }
.pl-log { font: 12px/16px var(--jp-code-font-family, monospace); white-space: pre-wrap;
  height: 108px; overflow: auto; display: flex; flex-direction: column-reverse;
  background: var(--jp-layout-color2, #f6f6f6); border-radius: 4px;
  padding: 6px 10px; margin-top: 6px; color: var(--jp-ui-font-color2, #555); }
.pl-log > div { margin-bottom: auto; }
.pl-error { border-left: 4px solid var(--jp-error-color1, #c62828); border-radius: 4px;
  background: var(--jp-layout-color2, #f3f3f3); padding: 7px 12px; margin: 6px 0 2px;
  font-size: 13px; line-height: 18px; }
.pl-error summary { font-size: 12px; cursor: pointer; color: var(--jp-ui-font-color2, #666); }
.pl-error pre { font-size: 11px; max-height: 220px; overflow: auto; color: inherit;
  background: none; white-space: pre-wrap; }
/* The kernel cannot know the theme, so a dark page turns the pictures' lightness around. */
[data-jp-theme-light="false"] img.pl-fig, .vscode-dark img.pl-fig, img.pl-fig.pl-dark {
  filter: invert(.89) hue-rotate(180deg) saturate(1.15); }
</style>"""
