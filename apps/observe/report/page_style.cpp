#include "apps/observe/report/page_style.h"

namespace meshwright::runs {

// Colours after Okabe and Ito, which most kinds of colour vision tell apart; dashes, shapes and
// letters say the same. On paper everything is light, and nothing stays folded.
const char* const kPageStyle = R"(
:root{color-scheme:light dark;--bg:#fbfbf9;--card:#fff;--fg:#1d2126;--dim:#5b636d;--line:#dfe2e6;
--c0:#0a63b0;--c1:#b85000;--c2:#007a55;--c3:#8a3ffc;--c4:#b3245b;--c5:#00708a;--c6:#7a5a00;--c7:#4a5058;
--ok:#007a55;--bad:#b3202c;--warn:#8a5a00;--soft:#eef2f7}
@media (prefers-color-scheme:dark){:root{--bg:#14171a;--card:#1c2024;--fg:#e6e9ec;--dim:#9aa4ae;--line:#343a41;
--c0:#6cb4f5;--c1:#f5a35c;--c2:#4fd0a3;--c3:#c3a1ff;--c4:#ff8fb4;--c5:#5fd3ea;--c6:#e0c060;--c7:#b5bdc6;
--ok:#4fd0a3;--bad:#ff8080;--warn:#e0b050;--soft:#252b31}}
@page{margin:13mm}
*{box-sizing:border-box}
body{margin:0;background:var(--bg);color:var(--fg);font:15px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:1180px;margin:0 auto;padding:1.2rem clamp(.8rem,3vw,2rem) 3rem}
h1{font-size:1.5rem;margin:.2rem 0;line-height:1.25;overflow-wrap:anywhere}
h2{font-size:1.12rem;margin:2.2rem 0 .7rem;padding-bottom:.25rem;border-bottom:1px solid var(--line)}
h3{font-size:1rem;margin:1.3rem 0 .5rem;overflow-wrap:anywhere}
p{margin:.35rem 0}.dim{color:var(--dim)}
code,pre,.mono{font-family:ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;font-size:.92em}
.charts{display:grid;gap:.9rem;grid-template-columns:repeat(auto-fill,minmax(min(100%,25rem),1fr))}
figure.chart,.card{margin:0;background:var(--card);border:1px solid var(--line);border-radius:8px;padding:.65rem .7rem .45rem}
figcaption{display:flex;flex-wrap:wrap;column-gap:.55rem;font-size:.93rem;min-height:1.5em}
output{margin-left:auto;font-variant-numeric:tabular-nums;color:var(--dim);font-size:.86rem}
.chart svg{display:block;width:100%;height:auto;touch-action:pan-y}
.chart svg:focus-visible{outline:2px solid var(--c0);outline-offset:2px;border-radius:4px}
svg text{fill:var(--fg);font:12px system-ui,-apple-system,"Segoe UI",Roboto,sans-serif;font-variant-numeric:tabular-nums}
@media (max-width:560px){.chart text{font-size:14.5px}.chart text.end{font-size:15px}}
.axis path{stroke:var(--line);fill:none}.axis .base{stroke:var(--dim)}
.axis text{fill:var(--dim);text-anchor:middle}.axis text.y{text-anchor:end}
.r0{--run:var(--c0)}.r1{--run:var(--c1)}.r2{--run:var(--c2)}.r3{--run:var(--c3)}
.r4{--run:var(--c4)}.r5{--run:var(--c5)}.r6{--run:var(--c6)}.r7{--run:var(--c7)}
.line{fill:none;stroke:var(--run);stroke-width:1.7;stroke-linejoin:round;stroke-linecap:round;vector-effect:non-scaling-stroke}
.band{fill:var(--run);fill-opacity:.2;stroke:var(--run);stroke-opacity:.35;stroke-width:.6}
.s circle,.dot{fill:var(--card);stroke:var(--run);stroke-width:1.4}
.end{fill:var(--run);font-weight:700}
.sign path{stroke:var(--fg);fill:var(--card);stroke-width:1.3}.sign text{fill:var(--run);font-weight:700}.sign .post{stroke:var(--dim);stroke-dasharray:1 3;fill:none}
.cursor path{stroke:var(--fg);stroke-width:.8}.cursor circle{fill:var(--fg)}
.sample{width:2.6em;height:.8em;vertical-align:-.05em;display:inline-block}
.legend{display:flex;flex-wrap:wrap;gap:.2rem 1.2rem;margin:.5rem 0}.legend .sample{width:1.7em;height:1em;vertical-align:-.15em}
.legend.runs .sample{width:2.8em;height:.85em}
.cards{display:grid;gap:.7rem;grid-template-columns:repeat(auto-fill,minmax(9.5rem,1fr));margin:.9rem 0}
.card b{display:block;font-size:1.2rem;font-variant-numeric:tabular-nums;overflow-wrap:anywhere;line-height:1.3}
.card span{color:var(--dim);font-size:.86rem}
.wide{overflow-x:auto}table{border-collapse:collapse;width:100%;font-size:.9rem}
th,td{text-align:left;padding:.32rem .8rem .32rem 0;border-bottom:1px solid var(--line);vertical-align:top}
th{color:var(--dim);font-weight:600}th.n,td.n{text-align:right;font-variant-numeric:tabular-nums}
td.n,table.facts td{white-space:nowrap}table.settings td{overflow-wrap:anywhere}
td pre{margin:0;white-space:pre-wrap;overflow-wrap:anywhere}
.state{font-weight:600;white-space:nowrap}.state.done,.state.saved{color:var(--ok)}
.state.failed,.state.fault{color:var(--bad)}.state.warning,.state.stopped,.state.stop,.state.restart,.state.unfinished{color:var(--warn)}
.problems{border-left:4px solid var(--warn);background:var(--soft);padding:.5rem .9rem;margin:.9rem 0;border-radius:4px;overflow-wrap:anywhere}
.problems ul{margin:.3rem 0;padding-left:1.2rem}
.pictures{display:flex;flex-wrap:wrap;gap:1rem 2.2rem;align-items:flex-start}.pictures>div{max-width:100%;flex:1 1 19rem}
.picture{display:block;max-width:100%;height:auto}
.wide>.picture{max-width:none}
.middle{text-anchor:middle}.right{text-anchor:end}svg .small{font-size:10px}svg .dim{fill:var(--dim)}svg .title{font-size:11.5px;font-weight:600}
.frame{fill:none;stroke:var(--dim)}.frame.inner{stroke-dasharray:4 3}
.rank{fill:var(--soft);stroke:var(--c0)}.rank.mine{stroke:var(--fg);stroke-width:2.4}
.bar{fill:var(--c0);fill-opacity:.55;stroke:var(--c0)}.bar.all{fill:var(--c7);stroke:var(--c7)}.bar.measured{fill:var(--c1);fill-opacity:.55;stroke:var(--c1)}
.part{stroke:var(--card);stroke-width:1}.computing{fill:var(--c0)}.overlapped{fill:url(#dots)}.waiting{fill:url(#lines)}.rest{fill:var(--card);stroke:var(--dim)}
.halo{paint-order:stroke;stroke:var(--card);stroke-width:3.5px;stroke-linejoin:round;font-weight:600}
.forward{fill:var(--c0);fill-opacity:.35}.backward{fill:var(--c2);fill-opacity:.55}.input{fill:var(--c5);fill-opacity:.4}.weight{fill:var(--c6);fill-opacity:.3}
.expert{fill:var(--c0)}.mean{stroke:var(--fg);stroke-dasharray:3 2;stroke-width:.8;fill:none}
summary{cursor:pointer;padding:.25rem 0;color:var(--dim)}details[open]>summary{margin-bottom:.3rem}
footer{margin-top:2.5rem;color:var(--dim);font-size:.86rem}
@media print{:root{color-scheme:light;--bg:#fff;--card:#fff;--fg:#000;--dim:#444;--line:#ccc;
--c0:#0a63b0;--c1:#b85000;--c2:#007a55;--c3:#8a3ffc;--c4:#b3245b;--c5:#00708a;--c6:#7a5a00;--c7:#4a5058;
--ok:#007a55;--bad:#b3202c;--warn:#8a5a00;--soft:#f2f2f2}
details::details-content{content-visibility:visible;display:block;height:auto}
main{padding:0;max-width:none}figure.chart,.card,tr,.keep{break-inside:avoid}h2,h3{break-after:avoid}
.wide{overflow:visible}.wide>.picture{max-width:100%}.screen{display:none}table.facts td,td.n{white-space:normal}th,td{padding-right:.45rem}.charts{grid-template-columns:1fr 1fr}body{font-size:10pt}table{font-size:8.5pt}
.part,.bar,.rank,.expert,.forward,.backward,.input,.weight{print-color-adjust:exact;-webkit-print-color-adjust:exact}}
)";

const char* const kPageScript = R"((()=>{
const NS='http://www.w3.org/2000/svg',units=[[1e12,'T'],[1e9,'G'],[1e6,'M'],[1e3,'k']];
const num=v=>{for(const[u,n]of units)if(Math.abs(v)>=u*9.9995)return +(v/u).toPrecision(4)+n;return String(+v.toPrecision(4));};
const bytes=v=>{let i=0;while(v>=1023.95&&i<6){v/=1024;i++;}return(i?v.toFixed(1):v)+' '+['B','KiB','MiB','GiB','TiB','PiB','EiB'][i];};
for(const svg of document.querySelectorAll('.chart svg')){
const[x0,x1,px0,px1]=svg.dataset.x.split(',').map(Number),[y0,y1,py0,py1,log]=svg.dataset.y.split(',').map(Number);
const show=svg.dataset.bytes==='1'?bytes:num,out=svg.parentNode.querySelector('output'),cursor=svg.querySelector('.cursor');
const lines=[...svg.querySelectorAll('.s')].map(g=>({name:g.dataset.name,points:g.dataset.points.split(';').map(p=>p.split(',').map(Number))}));
const X=s=>px0+(s-x0)/(x1-x0)*(px1-px0),Y=v=>{const t=log?Math.log(v/y0)/Math.log(y1/y0):(v-y0)/(y1-y0);return py0+t*(py1-py0);};
const near=(p,s)=>{let a=0,b=p.length-1;while(b-a>1){const m=(a+b)>>1;p[m][0]<s?a=m:b=m;}return Math.abs(p[a][0]-s)<=Math.abs(p[b][0]-s)?p[a]:p[b];};
const add=(tag,set)=>{const e=document.createElementNS(NS,tag);for(const k in set)e.setAttribute(k,set[k]);cursor.append(e);};
let at=null;
const draw=()=>{cursor.replaceChildren();if(at===null){out.textContent='';return;}
let best=null;for(const l of lines){const q=near(l.points,at);if(!best||Math.abs(q[0]-at)<Math.abs(best[0]-at))best=q;}
const step=best[0];let words='step '+step.toLocaleString('en');
add('path',{d:'M'+X(step)+' '+py0+'V'+py1});
for(const l of lines){const q=near(l.points,step);if(lines.length>1&&(step<l.points[0][0]||step>l.points.at(-1)[0]))continue;
words+='  '+(l.name?l.name+' ':'')+(isFinite(q[1])?show(q[1]):'not finite');
if(q.length>3)words+=' ('+show(q[2])+' to '+show(q[3])+')';
if(isFinite(q[1]))add('circle',{cx:X(q[0]),cy:Y(q[1]),r:3});}
out.textContent=words;};
svg.addEventListener('pointermove',e=>{const r=svg.getBoundingClientRect();
at=x0+((e.clientX-r.left)/r.width*svg.viewBox.baseVal.width-px0)/(px1-px0)*(x1-x0);at=Math.min(Math.max(at,x0),x1);draw();});
svg.addEventListener('pointerleave',()=>{at=null;draw();});
svg.addEventListener('blur',()=>{at=null;draw();});
svg.addEventListener('keydown',e=>{const d={ArrowLeft:-1,ArrowRight:1}[e.key];if(!d)return;e.preventDefault();
const p=lines[0].points;let i=at===null?(d>0?-1:p.length):p.indexOf(near(p,at));i=Math.min(Math.max(i+d,0),p.length-1);at=p[i][0];draw();});}
addEventListener('beforeprint',()=>document.querySelectorAll('details').forEach(d=>d.open=true));
})();)";

}  // namespace meshwright::runs
