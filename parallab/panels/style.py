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
.pl-panel .pl-progress { width: 42%; height: 14px; margin: 0; }
.pl-panel .pl-progress .progress { height: 14px; margin: 0; top: 0; bottom: 0;
  border-radius: 3px; overflow: hidden; }
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
